"""The programs of the local platform: etcd, Kubernetes, containerd, Cassandra, Pulumi and others.

    parts = find()                   # at once; Problem names what is missing
    parts.program("kube-apiserver")  # Path of a program, built here or the system's (`nft`)
    parts.cni                        # folder with the CNI plugins bridge, loopback and host-local
    parts.cassandra                  # folder of Cassandra's jars, to be run by parts.java
    parts.cache                      # this user's cache folder, for what else is made from parts
    ensure()                         # gets what is missing, then the same

Built once from the Go modules and the pom beside this file, into a cache of the user's: a folder
for each part, named after its version and a digest of what it is built from, so that a changed part
is built anew beside the old one. A program of the same minor version on PATH is used as it is.
"""

from local.parts.parts import Parts, ensure, find

__all__ = ["Parts", "ensure", "find"]
