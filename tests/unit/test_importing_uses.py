"""Where imported certificates are used is read from the configuration of daemons, and targets are proposed."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support import foreign_layouts as layouts
from tests.support.foreign_layouts import NOW, SmallCa, put

from holdfast.importing import certbot, daemon_files, proposals, uses
from holdfast.importing.daemon_files import Statement
from holdfast.importing.found import FoundCertificate
from holdfast.world import LocalTree

CA = SmallCa()
NAME = "www.example.com"


def _found(etc: Path, *names: str) -> list[FoundCertificate]:
    for name in names or (NAME,):
        layouts.certbot(etc / "letsencrypt", name, CA.issue(name, begins=-timedelta(days=10)))
    return list(certbot.read(LocalTree(etc / "letsencrypt"), NOW).certificates)


def _live(etc: Path, name: str = NAME) -> Path:
    return etc / "letsencrypt/live" / name


def _proposed(etc: Path, found: Sequence[FoundCertificate]) -> list[str]:
    of, notes = uses.read(LocalTree(etc))
    assert notes == []
    return proposals.commands(proposals.used(found, of), "/etc/holdfast/live")


# ── Languages ──


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("a b;", [("a", "b")]),
        ("a 'b c' \"d;e\"; # f;\n", [("a", "b c", "d;e")]),
        ("server{listen 443 ssl;}", [("{", "server"), ("listen", "443", "ssl"), ("}",)]),
        ("location ~ \\.php$ { }", [("{", "location", "~", "\\.php$"), ("}",)]),
        ("a b", []),
        ("}}}", [("}",)] * 3),
    ],
)
def test_nginx(text: str, statements: list[Statement]) -> None:
    assert list(daemon_files.nginx(text)) == statements


def test_apache() -> None:
    text = '<IfModule mod_ssl.c>\n<VirtualHost *:443 [::]:8443>\nSSLCertificateFile "/a b"\n# x\n'
    text += "ServerAlias a \\\n  b\n</VirtualHost>\n"
    assert list(daemon_files.apache(text)) == [
        ("{", "virtualhost", "*:443", "[::]:8443"),
        ("sslcertificatefile", "/a b"),
        ("serveralias", "a", "b"),
        ("}",),
    ]


def test_postfix() -> None:
    text = "myhostname = mail.a\n# no\ntls = /etc/${myhostname}\nsmtpd_tls_chain_files =\n  $tls/k,\n # no\n  $none/c\n"
    assert list(daemon_files.postfix(text))[1:] == [
        ("tls", "/etc/mail.a"),
        ("smtpd_tls_chain_files", "/etc/mail.a/k", "$none/c"),
    ]
    assert list(daemon_files.postfix("a = 1,\n  2\nb=3")) == [("a", "1", "2"), ("b", "3")]


def test_dovecot() -> None:
    text = "!include conf.d/*.conf\nssl_cert = </a\nlocal_name x {\n ssl_cert = </b\n}\nssl_server_key_file=/c\n"
    assert list(daemon_files.dovecot(text)) == [
        ("!include", "conf.d/*.conf"),
        ("ssl_cert", "/a"),
        ("ssl_server_key_file", "/c"),
    ]


# ── Uses ──


def test_a_server_of_nginx_in_an_included_file_is_found_with_its_names_and_ports(tmp_path: Path) -> None:
    found = _found(tmp_path)
    put(tmp_path / "nginx/nginx.conf", f"http {{ include {tmp_path}/nginx/sites-enabled/*; include conf.d/*.conf; }}")
    site = f"ssl_certificate {_live(tmp_path)}/fullchain.pem; ssl_certificate_key {_live(tmp_path)}/privkey.pem;"
    listen = "listen 80; listen 443 ssl; listen [::]:443 ssl http2; listen 127.0.0.1:8443 ssl;"
    put(tmp_path / "nginx/sites-enabled/www", f"server {{ {listen} server_name {NAME} other.example.com _; {site} }}")
    put(tmp_path / "nginx/conf.d/plain.conf", "server { listen 80; server_name plain.example.com; }")
    [use] = uses.read(LocalTree(tmp_path))[0]
    assert (use.daemon.preset, use.file) == ("nginx", f"{tmp_path}/nginx/sites-enabled/www")
    assert (use.certificate, use.key) == (f"{_live(tmp_path)}/fullchain.pem", f"{_live(tmp_path)}/privkey.pem")
    assert use.serial == found[0].serial
    assert use.endpoints(found[0]) == [f"{NAME}:443", f"{NAME}:8443"]
    assert _proposed(tmp_path, found) == [
        f"holdfast target add nginx nginx --set folder=/etc/holdfast/live --reload-domain nginx"
        f" --endpoint {NAME}:443 --endpoint {NAME}:8443",
        f"holdfast change {NAME} --target nginx",
    ]


def test_what_stands_around_a_server_holds_for_it_even_if_it_comes_later(tmp_path: Path) -> None:
    found = _found(tmp_path)
    later = f"ssl_certificate {_live(tmp_path)}/cert.pem;"  # another file with the same certificate
    put(tmp_path / "nginx/nginx.conf", f"http {{ server {{ location / {{ }} server_name {NAME}; }} {later} }}")
    assert _proposed(tmp_path, found)[0].endswith(f"--endpoint {NAME}:443")


def test_one_certificate_of_three_daemons_gets_three_targets(tmp_path: Path) -> None:
    found, live = _found(tmp_path), _live(tmp_path)
    pair = f"{live}/fullchain.pem"
    put(tmp_path / "apache2/apache2.conf", "IncludeOptional sites-enabled/*.conf\n")
    host = f"<VirtualHost *:444>\nServerName https://{NAME}:444\nSSLCertificateFile {pair}\n</VirtualHost>\n"
    put(tmp_path / "apache2/sites-enabled/a.conf", host)
    put(tmp_path / "postfix/main.cf", f"myhostname = mail.example.org\nsmtpd_tls_cert_file = {pair}\n")
    put(tmp_path / "dovecot/dovecot.conf", "!include conf.d/*.conf\n")
    put(tmp_path / "dovecot/conf.d/10-ssl.conf", f"ssl_cert = <{pair}\nssl_key = <{live}/privkey.pem\n")
    start = "holdfast target add {0} {0} --set folder=/etc/holdfast/live --reload-domain {0} --endpoint {1}"
    assert _proposed(tmp_path, found) == [
        start.format("apache", f"{NAME}:444"),
        start.format("postfix", f"smtp://{NAME}:25"),
        start.format("dovecot", f"{NAME}:993"),
        f"holdfast change {NAME} --target apache --target postfix --target dovecot",
    ]


def test_no_target_gets_more_endpoints_than_it_may_have(tmp_path: Path) -> None:
    names = [f"w{number:02}.example.com" for number in range(21)]
    found = _found(tmp_path, *names)
    servers = (f"server {{ server_name {n}; ssl_certificate {_live(tmp_path, n)}/fullchain.pem; }}" for n in names)
    put(tmp_path / "nginx/nginx.conf", " ".join(servers))
    first, second, *changes = _proposed(tmp_path, found)
    assert (first.count("--endpoint"), second.count("--endpoint"), len(changes)) == (20, 1, 21)
    assert second.startswith("holdfast target add nginx nginx-2 ")
    assert changes[-1] == "holdfast change w20.example.com --target nginx-2"


def test_names_of_a_configuration_never_become_words_of_a_command(tmp_path: Path) -> None:
    layouts.certbot(tmp_path / "letsencrypt", "wild", CA.issue("*.example.com", "example.com"))
    found = list(certbot.read(LocalTree(tmp_path / "letsencrypt"), NOW).certificates)
    names = "'$(reboot).example.com' *.example.com ~^x$ a.example.com"
    cert = f"{_live(tmp_path, 'wild')}/fullchain.pem"
    put(tmp_path / "nginx/nginx.conf", f"server {{ server_name {names}; ssl_certificate {cert}; }}")
    assert _proposed(tmp_path, found)[0].endswith("--reload-domain nginx --endpoint a.example.com:443")


def test_a_path_of_a_configuration_is_no_order_to_a_terminal(tmp_path: Path) -> None:
    put(tmp_path / "nginx/nginx.conf", "server { ssl_certificate '/x\x1b[2J'; }")
    [use] = uses.read(LocalTree(tmp_path))[0]
    assert use.certificate == "/x\\x1b[2J"


# ── Bounds ──


def test_files_that_include_themselves_end(tmp_path: Path) -> None:
    put(tmp_path / "nginx/nginx.conf", "include nginx.conf; " * 20)
    found, [note] = uses.read(LocalTree(tmp_path))
    assert found == []
    assert note == "nginx includes more than 2000 files: the others were not looked at."


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    put(tmp_path / "outside.conf", "server { ssl_certificate /x; }")
    put(tmp_path / "etc/nginx/nginx.conf", f"include {tmp_path}/outside.conf; include ../../outside.conf; include l;")
    (tmp_path / "etc/nginx/l").symlink_to(tmp_path / "outside.conf")
    found, [note] = uses.read(LocalTree(tmp_path / "etc"))
    assert found == []
    assert "a link that leads out of the folder" in note


def test_odd_texts_are_read_to_their_end(tmp_path: Path) -> None:
    put(tmp_path / "nginx/nginx.conf", "{" * 50_000 + "server { ssl_certificate; " + "\udcff" + '"')
    put(tmp_path / "apache2/apache2.conf", "<VirtualHost\nSSLCertificateFile\n</VirtualHost>\n</VirtualHost>")
    put(tmp_path / "postfix/main.cf", " smtpd_tls_cert_file = \n= x\nsmtpd_tls_cert_file = $smtpd_tls_cert_file")
    for use in uses.read(LocalTree(tmp_path))[0]:
        assert use.serial is None
