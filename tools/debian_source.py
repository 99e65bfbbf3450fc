"""Builds a free-threaded CPython from the source package of Debian trixie, without root.

apt is used with a sources list and state folders of its own, so the system's lists stay as they
are, and it checks the source against the Debian archive's signatures. Of the package only the
upstream tarball is used. The result lies in the cache.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from stages import MARKER, Cache, SetupError, say

SUITE = "trixie"
PACKAGE = "python3.13"
# Neither --enable-optimizations nor LTO: a two-minute build must not become a half-hour one.
CONFIGURE = ("--disable-gil", "--with-ensurepip=install", "--disable-test-modules")

# (header, Debian package, needed): what CPython's own extension modules are compiled against.
HEADERS = (
    ("openssl/ssl.h", "libssl-dev", True),
    ("zlib.h", "zlib1g-dev", True),
    ("ffi.h", "libffi-dev", True),
    ("bzlib.h", "libbz2-dev", True),
    ("lzma.h", "liblzma-dev", True),
    ("sqlite3.h", "libsqlite3-dev", False),
    ("readline/readline.h", "libreadline-dev", False),
)


def complete_builds(cache: Cache) -> list[Path]:
    """The folders of earlier builds that ran to their end."""
    return sorted(marker.parent for marker in cache.root.glob(f"interpreters/*/{MARKER}"))


def build(cache: Cache) -> Path:
    """Build CPython into the cache and return its folder; `SetupError` says what is missing."""
    _check_tools()
    mirrors, keyring = debian_mirrors(), _debian_keyring()
    _provide_headers(cache)
    work = cache.root / "build"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        tarball = _download(cache, work, mirrors, keyring)
        folder = cache.root / "interpreters" / f"{tarball.name.split('.orig')[0]}-t"
        with cache.entry(folder, {"source": tarball.name, "configure": CONFIGURE}) as to_build:
            if to_build:
                _compile(cache, work, tarball, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def _check_tools() -> None:
    missing = [tool for tool in ("apt-get", "dpkg", "make", "tar", "xz") if not shutil.which(tool)]
    if not (shutil.which("gcc") or shutil.which("cc")):
        missing.append("gcc")
    if missing:
        raise SetupError(f"building one needs {', '.join(missing)}")


def debian_mirrors() -> list[str]:
    """Addresses of Debian mirrors, out of the machine's own apt configuration."""
    answer = subprocess.run(
        ["apt-get", "update", "--print-uris"],  # fetches nothing, and needs no lists to be there
        capture_output=True,
        text=True,
        check=False,
    )
    # By custom a Debian mirror's address ends in "debian"; a wrong guess fails by its signature.
    addresses = dict.fromkeys(re.findall(r"^'(\S+?)/+dists/", answer.stdout, re.MULTILINE))
    found = [uri for uri in addresses if re.search(r"/debian(\.list)?$", uri)]
    if not found:
        raise SetupError("this machine's apt knows no Debian mirror to take Python's source from")
    return found


def _debian_keyring() -> Path:
    found = sorted(Path("/usr/share/keyrings").glob("debian-archive-keyring.*"))
    if not found:
        raise SetupError("the Debian archive's keyring is missing (package debian-archive-keyring)")
    return found[0]


def _provide_headers(cache: Cache) -> None:
    """Install the missing headers if we may; else say which, and stop if Python needs them."""
    missing = [row for row in HEADERS if not _has_header(row[0])]
    if not missing:
        return
    packages = [package for _, package, _ in missing]
    if os.geteuid() == 0:
        install_packages(cache, packages)
    elif any(needed for _, _, needed in missing):
        raise SetupError(f"building one needs headers: sudo apt-get install {' '.join(packages)}")
    else:
        say(f"env: built without {', '.join(packages)} (not needed here)")


def _has_header(header: str) -> bool:
    compiler = shutil.which("gcc") or shutil.which("cc") or "cc"
    # readline.h uses FILE without including stdio.h.
    source = f"#include <stdio.h>\n#include <{header}>\n"
    answer = subprocess.run(
        [compiler, "-E", "-"], input=source, capture_output=True, text=True, check=False
    )
    return answer.returncode == 0


def install_packages(cache: Cache, packages: list[str]) -> None:
    """Install Debian packages, as root; a new machine has no lists yet, so those come first."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    cache.run("apt-get update", ["apt-get", "update"], env=quiet)
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    cache.run(f"apt-get install {' '.join(packages)}", command, env=quiet)


def _download(cache: Cache, work: Path, mirrors: list[str], keyring: Path) -> Path:
    """Fetch the source package from the first mirror that has it; return the upstream tarball."""
    errors = []
    for mirror in mirrors:
        options = ["-c", str(_apt_configuration(work, mirror, keyring))]
        try:
            cache.run("read Debian's list of sources", ["apt-get", *options, "update"], cwd=work)
            cache.run(
                "download Python's source",
                ["apt-get", *options, "source", "--download-only", PACKAGE],
                cwd=work,
            )
            return next(work.glob(f"{PACKAGE}_*.orig.tar.xz"))
        except (SetupError, StopIteration) as error:
            errors.append(getattr(error, "details", "no upstream tarball in the package"))
    raise SetupError("Python's source could not be downloaded", "\n".join(errors))


def _apt_configuration(work: Path, mirror: str, keyring: Path) -> Path:
    """Write settings that keep apt inside `work`, with one source: Debian's source packages."""
    for folder in ("lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    sources = work / "sources.list"
    sources.write_text(f"deb-src [signed-by={keyring}] {mirror} {SUITE} main\n")
    configuration = work / "apt.conf"
    configuration.write_text(
        f'Dir::Etc::sourcelist "{sources}";\n'
        'Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{work}/lists";\n'
        f'Dir::Cache "{work}/cache";\n'
        'APT::Sandbox::User "root";\n'  # else root's apt works as a user to whom `work` is closed
        'Acquire::Retries "2";\n'
        'APT::Update::Error-Mode "any";\n'
        # The machine's own hooks would act on the machine's own lists.
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
    )
    return configuration


def _compile(cache: Cache, work: Path, tarball: Path, folder: Path) -> None:
    source = work / "source"
    source.mkdir()
    unpack = ["tar", "-xf", str(tarball), "-C", str(source), "--strip-components=1"]
    cache.run("unpack Python's source", unpack)
    configure = ["./configure", f"--prefix={folder}", *CONFIGURE]
    cache.run("configure free-threaded Python", configure, cwd=source)
    cores = len(os.sched_getaffinity(0))
    cache.run(f"compile free-threaded Python on {cores} cores", ["make", f"-j{cores}"], cwd=source)
    cache.run("install free-threaded Python into the cache", ["make", "install"], cwd=source)
