"""Each region's own certificate authority, and a certificate of least privilege for each component.

All keys are P-256. Nothing of one region is trusted in another.
"""

import base64
import ipaddress
import json
import os
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local.regions.layout import Region

VALID = timedelta(days=365)
API_PORT = 6443

ADMIN = "admin"
DEPLOYER = "deployer"
"""Pulumi's user: rbac.py says what it may."""
KUBELET_CLIENT = "apiserver-kubelet-client"


@dataclass(frozen=True)
class Identity:
    """A certificate's holder: user and groups for the API server, and its names as a server."""

    user: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


def identities(region: Region) -> dict[str, Identity]:
    """Who gets a certificate, by file name. Components may also serve (metrics, health)."""
    here = (region.address,)
    in_cluster = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
    return {
        "apiserver": Identity(
            "kube-apiserver", names=in_cluster, addresses=(*here, region.api_service)
        ),
        KUBELET_CLIENT: Identity(KUBELET_CLIENT),
        "controller-manager": Identity("system:kube-controller-manager", addresses=here),
        "scheduler": Identity("system:kube-scheduler", addresses=here),
        **{
            f"kubelet{node.suffix}": Identity(
                f"system:node:{node.name}", ("system:nodes",), (node.name,), (node.address,)
            )
            for node in (region.node, region.second_node)
        },
        "proxy": Identity("system:kube-proxy"),
        ADMIN: Identity(ADMIN, ("system:masters",)),
        DEPLOYER: Identity(DEPLOYER),
    }


def folder(region: Region) -> Path:
    """Where the region's keys, certificates and kubeconfigs are."""
    return region.folder / "pki"


def make(region: Region, now: datetime) -> None:
    """Make all of them, unless they are there: whole or not at all, keys for their owner alone."""
    target = folder(region)
    if target.exists():
        return
    new = target.with_name("pki.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True, mode=0o700)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"shortlink {region.name}", ())
    authority = (
        _certificate(subject, subject, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    # The authority's own key is written nowhere: nothing is issued later.
    (new / "ca.crt").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    _write_key(new / "service-accounts.key", ec.generate_private_key(ec.SECP256R1()))
    for name, identity in identities(region).items():
        key = ec.generate_private_key(ec.SECP256R1())
        issued = _issue(identity, key, subject, authority_key, now)
        (new / f"{name}.crt").write_bytes(issued.public_bytes(serialization.Encoding.PEM))
        _write_key(new / f"{name}.key", key)
        write_private(new / f"{name}.kubeconfig", kubeconfig([(region, name, region.context)], new))
    new.rename(target)


def kubeconfig(entries: list[tuple[Region, str, str]], pki: Path | None = None) -> str:
    """A kubeconfig with a context for each (region, identity, context); the first is current.

    `pki` is where the files are, when not yet in the region's own place. It holds keys.
    """
    clusters, users, contexts = [], [], []
    for region, name, context in entries:
        files = pki or folder(region)
        clusters.append(
            {
                "name": context,
                "cluster": {
                    "server": f"https://{region.address}:{API_PORT}",
                    "certificate-authority-data": _base64(files / "ca.crt"),
                },
            }
        )
        users.append(
            {
                "name": context,
                "user": {
                    "client-certificate-data": _base64(files / f"{name}.crt"),
                    "client-key-data": _base64(files / f"{name}.key"),
                },
            }
        )
        contexts.append({"name": context, "context": {"cluster": context, "user": context}})
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": clusters,
            "users": users,
            "contexts": contexts,
            "current-context": entries[0][2],
        },
        indent=1,
    )


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _issue(
    identity: Identity,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime,
) -> x509.Certificate:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in identity.names]
    names += [x509.IPAddress(ipaddress.ip_address(text)) for text in identity.addresses]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * bool(names)
    subject = _subject(identity.user, identity.groups)
    certificate = (
        _certificate(subject, issuer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    )
    if names:
        certificate = certificate.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return certificate.sign(authority_key, hashes.SHA256())


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )


def _subject(name: str, groups: tuple[str, ...]) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # what the API server reads
        serialization.NoEncryption(),
    )
    write_private(path, pem.decode())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
