"""Keys and configuration of the cluster's sshds and of the ssh clients that reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .namespaces import command, tool


@dataclass(frozen=True)
class Endpoint:
    """One sshd: the folder of its host, its name and its address."""

    folder: Path
    name: str
    address: str

    @property
    def host_key(self) -> Path:
        return self.folder / "ssh_host_ed25519_key"

    @property
    def sshd_config(self) -> Path:
        return self.folder / "sshd_config"


def make_key(path: Path, comment: str) -> str:
    """Make a key pair and return the public half."""
    command([tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii").strip()


def write_private(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)


def write_configuration(folder: Path, endpoints: Sequence[Endpoint]) -> Path:
    """Everything that servers and clients need, in `folder`; the result is the clients' `ssh -F` file."""
    identity, known_hosts, authorized = (
        folder / "identity",
        folder / "known_hosts",
        folder / "authorized_keys",
    )
    write_private(authorized, make_key(identity, "muster-test-cluster") + "\n")
    known = []
    for endpoint in endpoints:
        public = " ".join(make_key(endpoint.host_key, endpoint.name).split()[:2])
        known.append(f"{endpoint.name},{endpoint.address} {public}\n")
        write_private(endpoint.sshd_config, server_text(endpoint.host_key, authorized))
    write_private(known_hosts, "".join(known))
    ssh_config = folder / "ssh_config"
    write_private(ssh_config, "".join(client_text(each, identity, known_hosts) for each in endpoints))
    return ssh_config


def sshd_argv(endpoint: Endpoint) -> list[str]:
    return [tool("sshd"), "-D", "-e", "-f", str(endpoint.sshd_config), "-o", "UsePAM=no"]


def server_text(host_key: Path, authorized: Path) -> str:
    # StrictModes: the keys may lie below a folder such as /tmp that others can write to.
    return f"""\
Port 22
AddressFamily inet
HostKey "{host_key}"
AuthorizedKeysFile "{authorized}"
StrictModes no
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PermitUserEnvironment no
PermitUserRC no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
MaxStartups 200
MaxSessions 200
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""


def client_text(endpoint: Endpoint, identity: Path, known_hosts: Path) -> str:
    return f"""\
Host {endpoint.name} {endpoint.address}
    HostName {endpoint.address}
    Port 22
    User root
    IdentityFile "{identity}"
    IdentitiesOnly yes
    IdentityAgent none
    PreferredAuthentications publickey
    UserKnownHostsFile "{known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    UpdateHostKeys no
    CheckHostIP no
    BatchMode yes
    ConnectTimeout 10
    LogLevel ERROR

"""
