"""Silos are added, keys renewed and revoked: who is taken at their word afterwards, and who is not."""

import datetime
import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

import idiolect
from cli.test_bad_inputs import told
from idiolect.errors import UserError
from idiolect.silo import certificates, key_cycle, keys
from idiolect.silo.key_cycle import ends_to_come, require_good_certificates
from idiolect.silo.keys import read_credentials, read_known_keys
from idiolect.silo.reachability import why_unreachable
from silo.problem import FIVE_SILOS, config, deployed
from silo.secure_problem import Direct, ServedRun, serve, with_keys
from silo.test_commands import run
from silo.test_reachability import listening

pytest.importorskip("cryptography")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    keys.init_keys(tmp_path / "keys", "127.0.0.1", ["north", "south"])
    return tmp_path / "keys"


def is_believed(made: Path, name: str, reader: str, own: Path | None = None) -> bool:
    """Whether a party takes a silo's signature for its word."""
    signature = read_credentials(own or made / name, name).identity.sign("test", {"x": 1})
    try:
        read_known_keys(made / reader).require(name, "test", {"x": 1}, signature)
    except UserError:
        return False
    return True


def everybody_believes(made: Path, name: str) -> bool:
    parties = [path.parent.name for path in made.glob("*/silos")]
    return all(is_believed(made, name, reader) for reader in parties)


def test_an_added_silo_is_known_to_all_and_knows_all(made: Path) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*.*") if path.is_file()}
    assert idiolect.silo_add(["west", "east"], keys=made) == ["north", "south"]
    assert all(everybody_believes(made, name) for name in ("north", "south", "west", "east"))
    assert (made / "west" / "ca.pem").read_bytes() == (made / "north" / "ca.pem").read_bytes()
    assert (made / "west" / "silo.key").stat().st_mode & 0o777 == 0o600
    assert all(path.read_bytes() == content for path, content in before.items())
    assert {path.name for path in (made / "west").iterdir()} == {"ca.pem", "silo.key", "silos"}


def test_a_revoked_key_is_believed_under_no_name(made: Path) -> None:
    """As if the same key had been admitted for another silo."""
    stolen = shutil.copytree(made / "north", made.parent / "stolen")
    idiolect.silo_revoke(["north"], keys=made)
    line = (stolen / "silos" / "north.pub").read_bytes()
    (made / "south" / "silos" / "east.pub").write_bytes(line)
    assert not is_believed(made, "east", "south", stolen)


def test_one_key_is_not_two_silos(made: Path) -> None:
    silos = made / "coordinator" / "silos"
    shutil.copy(silos / "north.pub", silos / "east.pub")
    with pytest.raises(UserError, match="one key for east and north"):
        idiolect.silo_keys(keys=made / "coordinator")


def test_a_silo_is_added_where_others_have_taken_their_folders_away(made: Path) -> None:
    shutil.rmtree(made / "north")
    idiolect.silo_add(["west"], keys=made)
    assert not (made / "north").exists()
    assert (made / "west" / "silos" / "north.pub").is_file()


def test_a_renewed_key_is_believed_and_the_one_before_is_not(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "north", tmp_path / "old")
    assert idiolect.silo_renew(["north"], keys=made) is False
    assert everybody_believes(made, "north")
    assert not any(
        is_believed(made, "north", reader, tmp_path / "old") for reader in ("coordinator", "south")
    )


def test_a_renewed_certificate_is_trusted_by_those_who_trusted_the_one_before(made: Path) -> None:
    certificate = made / "coordinator" / "server.pem"
    before = certificates.certificate_end(certificate)
    assert idiolect.silo_renew(["coordinator"], keys=made, days=1000) is False
    assert (certificates.certificate_end(certificate) - before).days in (269, 270)
    with listening(made / "coordinator") as server:
        assert why_unreachable(server, made / "north" / "ca.pem") == ""


def test_a_certificate_that_outlives_its_authority_brings_another_one(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "north", tmp_path / "old")
    assert idiolect.silo_renew(["coordinator"], keys=made, days=5000) is True
    assert (tmp_path / "old" / "ca.pem").read_bytes() != (made / "north" / "ca.pem").read_bytes()
    with listening(made / "coordinator") as server:  # who has not copied it yet can still connect
        assert why_unreachable(server, tmp_path / "old" / "ca.pem") == ""
    with listening(made / "coordinator") as server:
        assert why_unreachable(server, made / "north" / "ca.pem") == ""


def test_a_revoked_silo_is_believed_by_nobody_until_it_gets_another_key(made: Path) -> None:
    idiolect.silo_revoke(["south"], keys=made)
    assert not any(is_believed(made, "south", reader) for reader in ("coordinator", "north", "south"))
    assert everybody_believes(made, "north")
    states = {(entry.who, entry.state) for entry in idiolect.silo_keys(keys=made)}
    assert ("south", "revoked") in states
    assert ("south", "good") not in states
    idiolect.silo_renew(["south"], keys=made)
    assert everybody_believes(made, "south")


def test_an_old_file_that_is_copied_back_does_not_revive_a_key(made: Path) -> None:
    line = (made / "coordinator" / "silos" / "south.pub").read_bytes()
    idiolect.silo_revoke(["south"], keys=made / "coordinator")
    (made / "coordinator" / "silos" / "south.pub").write_bytes(line)
    assert not is_believed(made, "south", "coordinator")
    assert is_believed(made, "south", "north")  # who was not told


def test_the_others_accept_no_sum_with_a_key_that_they_revoked(tmp_path: Path) -> None:
    """North knows that south's key is revoked and the coordinator does not: sums go on without north."""
    silos = with_keys(tmp_path, FIVE_SILOS)
    settings = config({"name": "fedavg", "local_steps": 2}, rounds=2, evaluation={"every": 2})
    own = deployed(settings, tmp_path, FIVE_SILOS, secure={"threshold": 3})
    served = ServedRun.create(tmp_path / "run", own)
    idiolect.silo_revoke(["south"], keys=tmp_path / "keys" / "north")  # after it joined
    serve(served, Direct(silos), tmp_path)
    opened = json.loads((served.path / "survivors.json").read_text())
    assert opened[f"{served.name}/work/1/0"] == sorted(set(FIVE_SILOS) - {"north"})


def test_names_that_somebody_sends_are_not_looked_for_elsewhere(made: Path) -> None:
    known = read_known_keys(made / "north")
    idiolect.silo_add(["west"], keys=made)
    signature = read_credentials(made / "west", "west").identity.sign("test", {})
    known.require("west", "test", {}, signature)  # who came later is known, too
    for name in ("../silos/west", "west.pub/../west", "", "west\n"):
        with pytest.raises(UserError, match="is not known here"):
            known.require(name, "test", {}, signature)


@pytest.mark.parametrize("command", ["add", "renew", "coordinator", "revoke"])
def test_what_is_interrupted_anywhere_is_finished_by_the_same_command(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    acts = {
        "add": lambda folder: key_cycle.add_silos(folder, ["west"]),
        "renew": lambda folder: key_cycle.renew_keys(folder, ["south"]),
        "coordinator": lambda folder: key_cycle.renew_keys(folder, ["coordinator"], 5000),
        "revoke": lambda folder: key_cycle.revoke_keys(folder, ["south"]),
    }
    write, most = keys.write_bytes, 0
    for fails_at in range(1, 40):
        folder = tmp_path / f"copy-{fails_at}"
        shutil.copytree(made, folder)
        calls = 0

        def failing(path: Path, content: bytes) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:  # noqa: B023  (called at once)
                raise KeyboardInterrupt
            write(path, content)

        monkeypatch.setattr(keys, "write_bytes", failing)
        try:
            acts[command](folder)
        except KeyboardInterrupt:
            monkeypatch.setattr(keys, "write_bytes", write)
            assert is_believed(folder, "north", "coordinator")  # whom it is not about
            acts[command](folder)
        else:
            break
        most = fails_at
        for name in ("north", *({"add": ("west",), "renew": ("south",)}.get(command, ()))):
            assert everybody_believes(folder, name), (command, fails_at)
        if command == "revoke":
            assert not is_believed(folder, "south", "coordinator")
        assert not list(folder.rglob("*.new"))
        with listening(folder / "coordinator") as server:
            assert why_unreachable(server, folder / "north" / "ca.pem") == ""
    assert most >= 3


def test_an_interrupted_init_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path, content: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keys, "write_public", failing)
        with pytest.raises(KeyboardInterrupt):
            keys.init_keys(tmp_path / "keys", "127.0.0.1", ["north"])
    keys.init_keys(tmp_path / "keys", "127.0.0.1", ["north"])


def test_ends_are_shown_and_seen_coming(made: Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    ends = {"north": today + datetime.timedelta(days=30), "south": today - datetime.timedelta(days=1)}
    for name, until in ends.items():
        path = made / "coordinator" / "silos" / f"{name}.pub"
        kind, key, *_ = path.read_bytes().split()
        path.write_bytes(kind + b" " + key + f" {name} until={until}\n".encode())
    states = {entry.who: (entry.state, entry.until) for entry in idiolect.silo_keys(keys=made)}
    assert states["north"] == ("ends soon", ends["north"])
    assert states["south"] == ("over", ends["south"])
    assert not is_believed(made, "south", "coordinator")
    told = ends_to_come(made / "coordinator", ["north", "south"])
    assert [sentence.split(";")[0] for sentence in told] == [
        f"the key of north ends on {ends['north']}",
        f"the key of south ended on {ends['south']}",
    ]
    assert ends_to_come(made / "coordinator", []) == []
    require_good_certificates(made / "coordinator")


def test_keys_of_earlier_versions_have_no_end(made: Path) -> None:
    path = made / "coordinator" / "silos" / "north.pub"
    path.write_bytes(b" ".join(path.read_bytes().split()[:2]))
    assert [entry.until for entry in idiolect.silo_keys(keys=made) if entry.who == "north"] == [None]
    assert is_believed(made, "north", "coordinator")


def test_a_lifetime_is_chosen(tmp_path: Path) -> None:
    code, _ = run("silo", "init", "a", "--host", "x", "--out", str(tmp_path / "keys"), "--days", "20")
    assert code == 0
    entries = {entry.who: entry for entry in idiolect.silo_keys(keys=tmp_path / "keys")}
    today = datetime.datetime.now(datetime.UTC).date()
    days = {who: (entry.until - today).days for who, entry in entries.items() if entry.until}
    assert {who: days[who] for who in ("coordinator", "a")} == {"coordinator": 20, "a": 20}
    assert days["authority"] == 3650
    assert entries["a"].state == "ends soon"


REFUSED = [
    (("add", "north"), "silo 'north' has a key already; `idiolect silo renew north` makes another one"),
    (("add", "North"), "must differ in more than capital letters"),
    (("add", "../x"), "silo '../x' is not possible"),
    (("add", "west", "--days", "0"), "days=0 is not possible: it must be a whole number from 1 to 36500"),
    (("renew", "west"), "silo 'west' has no key to renew; `idiolect silo add west` makes one"),
    (("revoke", "west"), "silo 'west' has no key in 'keys' that could be revoked"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_mistakes_are_told_in_one_line(
    made: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(made.parent)
    before = sorted(made.rglob("*"))
    code, text = run("silo", *arguments, "--keys", "keys")
    assert (code, len(text.strip().splitlines())) == (2, 1)
    assert sentence in text
    assert sorted(made.rglob("*")) == before
    told(" ".join(("silo", *arguments, "--keys", "keys")), text.strip(), made.parent)


def test_a_folder_that_is_none_and_an_authority_that_is_away(made: Path, tmp_path: Path) -> None:
    for command in ("keys", "add x", "revoke x", "renew x"):
        code, text = run("silo", *command.split(), "--keys", str(tmp_path))
        assert (code, len(text.strip().splitlines())) == (2, 1), text
    (made / "authority.key").unlink()
    code, text = run("silo", "renew", "coordinator", "--keys", str(made))
    assert code == 2
    assert "authority.key', which signs certificates; bring it here" in text


def test_who_cannot_join_is_told(made: Path, tmp_path: Path) -> None:
    idiolect.silo_revoke(["south"], keys=made)
    with pytest.raises(UserError, match="silo 'south' cannot join: its key was revoked, says --keys"):
        idiolect.join(server="127.0.0.1:1", data="x.csv", name="south", keys=made / "south")
    with pytest.raises(UserError, match="is the folder of north, not of west"):
        idiolect.join(server="127.0.0.1:1", data="x.csv", name="west", keys=made / "north")


@pytest.mark.parametrize("file", ["ca.pem", "silo.key", "silos/south.pub"])
def test_a_silo_is_told_which_file_of_its_folder_is_damaged(made: Path, file: str) -> None:
    (made / "north" / file).write_text("-----BEGIN OPENSSH")
    with pytest.raises(UserError, match=file) as told:
        idiolect.join(server="127.0.0.1:1", data="x.csv", name="north", keys=made / "north")
    assert "x.csv" not in str(told.value)


@pytest.mark.parametrize("file", ["ca.pem", "server.pem", "server.key"])
def test_a_coordinator_is_told_which_file_of_its_folder_is_damaged(made: Path, file: str) -> None:
    (made / "coordinator" / file).write_text("-----BEGIN")
    with pytest.raises(UserError, match=file):
        require_good_certificates(made / "coordinator")


def test_a_certificate_of_another_key_is_refused_before_flower_starts(made: Path) -> None:
    shutil.copy(made / "authority.key", made / "coordinator" / "server.key")
    with pytest.raises(UserError, match=r"server.pem' is the certificate of another key than .*server.key"):
        require_good_certificates(made / "coordinator")


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_whatever_the_umask_all_may_read_public_keys_and_nobody_write_them(tmp_path: Path, mask: int) -> None:
    """Who revokes a key need not be the user who serves; and a file that is put there admits its owner."""
    before = os.umask(mask)
    try:
        idiolect.silo_init(["north", "south"], host="127.0.0.1", out=tmp_path / "keys")
        idiolect.silo_revoke(["south"], keys=tmp_path / "keys")
    finally:
        os.umask(before)
    paths = [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]
    modes = {path.relative_to(tmp_path): stat.S_IMODE(path.stat().st_mode) for path in paths}
    expected = {path: 0o600 if path.suffix == ".key" else 0o644 if path.suffix else 0o755 for path in modes}
    assert modes == expected
    assert any(path.parent.name == "revoked" for path in modes)


def test_a_folder_of_revoked_keys_that_cannot_be_read_is_not_an_empty_one(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idiolect.silo_revoke(["south"], keys=made / "coordinator")
    list_folder = os.listdir

    def forbidden(path: Path) -> list[str]:
        if Path(path).name == "revoked":
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(UserError, match=r"the keys in '.*revoked' cannot be read: Permission denied"):
        idiolect.silo_keys(keys=made / "coordinator")
