"""Certificates of a host: what really listens there, what daemons are configured with, folders; and keys never read."""

import os
from hashlib import sha256
from pathlib import Path

import pytest
from tests.integration.test_cli_lifecycle import a_shell
from tests.support import served

from holdfast.core.discovery.host import FileFacts, key_note, listening, may_be_certificate
from holdfast.endpoints import probe
from holdfast.host import looking
from holdfast.host.looking import HostLook
from holdfast.importing import haproxy_files
from holdfast.network import SystemNet
from holdfast.store.database import Database
from holdfast.this_host import KeylessTree, NoSockets, ThisHost
from holdfast.world import LocalTree, SystemRandom

pytestmark = pytest.mark.anyio
NAME = "www.example.org"


async def looked(etc: Path, *folders: Path, port: int | None = None) -> HostLook:
    eye = probe.make(
        SystemNet(), SystemRandom(), resolvers=[], networks=["127.0.0.0/8", "::1/128"], each=3, only="this host"
    )
    host = NoSockets() if port is None else ThisHost([port])
    root = KeylessTree(Path("/"))
    return await looking.look(
        host, eye.look_whole, etc=KeylessTree(etc), root=root, folders=[str(each) for each in folders]
    )


def test_listening_sockets_are_read_as_the_kernel_writes_them() -> None:
    text = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337 1 0 100 0 0 10 0
   1: 00000000:0019 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   2: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   3: nonsense
"""
    found = list(listening(text))
    assert [(each.address, each.port, each.inode) for each in found] == [
        ("127.0.0.1", 8080, "31337"), ("0.0.0.0", 25, "4242"),
    ]  # fmt: skip
    assert [each.endpoint.shown for each in found] == ["tls://127.0.0.1:8080", "smtp://127.0.0.1:25"]
    six = "header\n 0: 00000000000000000000000001000000:01BB 0:0 0A 0:0 0:0 0 0 0 7 1\n"
    assert [each.endpoint.shown for each in listening(six)] == ["tls://[::1]:443"]


async def test_a_certificate_is_seen_where_its_program_listens(tmp_path: Path) -> None:
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME)
        with served.nginx(folder, pair) as port:
            found = await looked(tmp_path, port=port)
    [mine] = [each for each in found.finds if each.place == f"tls://127.0.0.1:{port}"]
    assert (mine.served, mine.program) == (True, "nginx")
    assert tuple(sha256(each).hexdigest() for each in mine.chain) == pair.chain


def _configured(etc: Path, pair: served.Pair) -> dict[str, Path]:
    """nginx, Apache, HAProxy, Postfix and Dovecot, each with a copy of its own."""
    folder = etc / "tls"
    folder.mkdir(parents=True)
    names = ("nginx", "apache", "haproxy", "postfix", "dovecot")
    files = {each: folder / f"{each}.pem" for each in names}
    for name, path in files.items():
        key_after = pair.key.read_bytes() if name == "haproxy" else b""
        path.write_bytes(pair.fullchain.read_bytes() + key_after)
    key = folder / "private.key"
    key.write_bytes(pair.key.read_bytes())
    key.chmod(0o604)
    texts = {
        "nginx/nginx.conf": f"http {{ server {{ listen 443 ssl; ssl_certificate {files['nginx']};"
        f" ssl_certificate_key {key}; }} }}",
        "apache2/apache2.conf": f"<VirtualHost *:443>\nSSLCertificateFile {files['apache']}\n"
        f"SSLCertificateKeyFile {key}\n</VirtualHost>\n",
        "haproxy/haproxy.cfg": f"frontend www\n  bind :443 ssl crt {files['haproxy']} # one\n",
        "postfix/main.cf": f"smtpd_tls_cert_file = {files['postfix']}\nsmtpd_tls_key_file = {key}\n",
        "dovecot/dovecot.conf": f"ssl_cert = <{files['dovecot']}\nssl_key = <{key}\n",
    }
    for name, text in texts.items():
        (etc / name).parent.mkdir()
        (etc / name).write_text(text)
    return files


async def test_files_that_daemons_are_told_to_serve_are_found_with_mode_and_owner_of_their_keys(
    tmp_path: Path,
) -> None:
    etc = tmp_path / "etc"
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME)
        files = _configured(etc, pair)
        found = await looked(etc)
    assert {each.program: each.place for each in found.finds} == {name: str(path) for name, path in files.items()}
    assert {sha256(each.chain[0]).hexdigest() for each in found.finds} == {pair.leaf}
    notes = {each.program: each.notes for each in found.finds}
    assert notes["nginx"] == f"key {etc}/tls/private.key: mode 0604, owner root, readable by everybody"
    assert notes["haproxy"].startswith(f"key {files['haproxy']}: mode 0")


def test_not_one_byte_of_a_key_is_read(tmp_path: Path) -> None:
    """As the kernel counts what is read of a file: up to the line that says that a key follows."""
    with served.open_folder() as folder:
        pair = served.Issuing(folder).pair(NAME)
        chain, key = pair.fullchain.read_bytes(), pair.key.read_bytes()
    both = tmp_path / "combined.pem"
    both.write_bytes(chain + key)
    before = _read_by_us()
    assert KeylessTree(tmp_path).read("combined.pem", 100_000) == chain
    first_line = len(key.splitlines(keepends=True)[0])
    assert _read_by_us() - before <= len(chain) + first_line + 4096, "the kernel's own files are read, too"
    assert KeylessTree(tmp_path).read("none.pem", 10) is None
    reversed_order = tmp_path / "first.pem"
    reversed_order.write_bytes(key + chain)
    assert KeylessTree(tmp_path).read("first.pem", 100_000) == b""


def _read_by_us() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


async def test_folders_are_looked_into_by_names_of_files_within_bounds(tmp_path: Path) -> None:
    with served.open_folder() as folder:
        issuing = served.Issuing(folder)
        pair, tls = issuing.pair(NAME), tmp_path / "tls"
        (tls / "deep").mkdir(parents=True)
        (tls / "deep" / "web.crt").write_bytes(pair.certificate.read_bytes())
        (tls / "server-key.pem").write_bytes(pair.key.read_bytes())
        (tls / "roots.pem").write_bytes(issuing.roots.read_bytes())
        (tls / "empty.pem").write_bytes(b"")
        (tls / "garbage.der").write_bytes(b"\x30\x82\xff\xff")
        os.symlink("/etc/shadow", tls / "shadow.pem")
        os.mkfifo(tls / "pipe.pem")
        found = await looked(tmp_path / "no-etc", tls)
    assert [each.place for each in found.finds] == [str(tls / "deep" / "web.crt")]


def test_a_key_is_known_by_its_name_and_told_of_by_its_mode() -> None:
    assert not may_be_certificate("privkey.pem")
    assert not may_be_certificate("server.key")
    assert may_be_certificate("fullchain.pem")
    assert key_note("/k", FileFacts(mode=0o100600, owner="root")) == "key /k: mode 0600, owner root"
    assert key_note("/k", None) == "key /k: not there"


def test_haproxy_reads_files_and_folders_below_its_base(tmp_path: Path) -> None:
    (tmp_path / "haproxy" / "certs").mkdir(parents=True)
    (tmp_path / "haproxy" / "certs" / "a.pem").write_text("")
    (tmp_path / "haproxy" / "certs" / "a.pem.key").write_text("")
    (tmp_path / "haproxy" / "haproxy.cfg").write_text(
        f"global\n crt-base {tmp_path}/haproxy\nfrontend a\n bind :443 ssl crt certs crt /srv/b.pem alpn h2\n"
    )
    assert haproxy_files.certificates(LocalTree(tmp_path)) == [f"{tmp_path}/haproxy/certs/a.pem", "/srv/b.pem"]


async def test_a_host_reports_and_what_is_not_there_any_more_is_gone(db: Database, tmp_path: Path) -> None:
    etc = tmp_path / "etc" / "letsencrypt"
    folder = etc / "live" / NAME
    folder.mkdir(parents=True)
    async with a_shell(db, tmp_path) as shell:
        with served.open_folder() as made:
            pair = served.Issuing(made).pair(NAME, days=5)
            (folder / "fullchain.pem").write_bytes(pair.fullchain.read_bytes())
            (folder / "privkey.pem").write_bytes(pair.key.read_bytes())
            with served.nginx(made, pair) as port:
                told = await shell.ok(
                    "discover", "host", "--etc", str(tmp_path), "--folder", str(etc), "--name", "web-1",
                    "--port", str(port),
                )  # fmt: skip
                assert "are seen on web-1" in told.out
                [row] = [
                    each
                    for each in (await shell.ok("finds", "ls", "-o", "json")).json
                    if each["fingerprint"] == pair.leaf
                ]
                assert (row["served"], row["manager"], row["places"]) == (True, "certbot", 2)
                assert "holdfast import certbot" in row["adopt"]
                shown = await shell.ok("finds", "show", row["id"])
                assert f"web-1: tls://127.0.0.1:{port}" in shown.out
                assert "nginx" in shown.out
        again = await shell.ok(
            "discover", "host", "--etc", str(tmp_path), "--name", "web-1", "--no-sockets", "-o", "json"
        )
        assert again.json["recorded"] == 0
        [gone] = [
            each for each in (await shell.ok("finds", "ls", "-o", "json")).json if each["fingerprint"] == pair.leaf
        ]
        assert (gone["state"], gone["served"]) == ("gone", False)


async def test_a_report_with_rubbish_in_it_costs_nothing_but_its_own_line(db: Database, tmp_path: Path) -> None:
    async with a_shell(db, tmp_path) as shell:
        admin = await shell.desk.as_()
        rubbish = [{"chain": [each], "place": "/x\u001b[2J"} for each in ("!!!", "AAAA", "")]
        answer = await admin.post("/discovery/host", {"host": "web-1", "finds": rubbish})
        assert (answer["recorded"], answer["unreadable"]) == (0, 3)
        for wrong in ({"host": "a b"}, {"host": "x", "finds": [{}]}, {"host": "x", "finds": rubbish * 17}):
            refused = await admin("POST", "/discovery/host", wrong)
            assert refused.status_code == 422, refused.text
