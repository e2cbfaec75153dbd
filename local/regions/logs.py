"""The ends of the components' logs, and of the pods'."""

from pathlib import Path

from local.parts import Parts
from local.problem import Problem
from local.regions import cluster, pki
from local.regions.commands import run
from local.regions.layout import Region
from local.regions.processes import tail


def logs(region: Region, component: str | None, lines: int, parts: Parts) -> str:
    """The last lines of one component (or Deployment), or of all. Raises Problem."""
    if component in cluster.DEPLOYMENTS:
        return _pod_logs(region, component, lines, parts)
    files = sorted(region.logs.glob("*.log"))
    if component is not None:
        files = [file for file in files if file.stem == component]
    if not files:
        known = ", ".join([*(file.stem for file in region.logs.glob("*.log"))])
        raise Problem(
            f"{region.name} has no log of {component or 'anything'}; there are: {known or 'none'}"
        )
    return "\n".join(f"==> {file.stem}\n{tail(file, lines)}" for file in files)


def _pod_logs(region: Region, deployment: str, lines: int, parts: Parts) -> str:
    admin: Path = pki.folder(region) / f"{pki.ADMIN}.kubeconfig"
    return run(
        parts.program("kubectl"),
        *(f"--kubeconfig={admin}", f"--namespace={cluster.NAMESPACE}", "logs", "--all-pods=true"),
        *("--prefix", f"--tail={lines}", f"deployment/{deployment}"),
    )
