"""What is released: the bill of materials names everything that is installed; the image is built as it should be."""

import json
import re
from pathlib import Path

import yaml
from scripts.release import bill_of_materials
from scripts.try_image import problems

TOP = Path(__file__).parents[2]


def test_the_bill_of_materials_has_every_package_of_the_lock_with_its_hashes() -> None:
    locked = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==", (TOP / "requirements" / "run.txt").read_text(), re.MULTILINE
    )
    bill = json.loads(json.dumps(bill_of_materials()))
    assert [each["name"] for each in bill["components"]] == locked
    assert all(each["hashes"] for each in bill["components"])
    assert bill["specVersion"] == "1.6"


def test_the_image_has_hashed_wheels_a_user_without_rights_and_no_shell_form() -> None:
    text = (TOP / "deploy" / "Containerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert "--require-hashes --only-binary :all:" in text
    assert re.search(r"^USER 65532", last, re.MULTILINE)
    assert 'ENTRYPOINT ["holdfast"]' in last
    assert 'CMD ["serve"]' in last
    assert "STOPSIGNAL SIGTERM" in last
    assert "pip install" not in last
    assert ":latest" not in text


def test_an_image_that_breaks_a_rule_is_refused_by_name() -> None:
    good = {
        "User": "65532:0", "Entrypoint": ["holdfast"], "Cmd": ["serve"], "StopSignal": "SIGTERM",
        "Labels": {"org.opencontainers.image.version": "0.1.0"}, "Volumes": {"/data": {}},
    }  # fmt: skip
    assert problems(good) == []
    assert problems({**good, "User": "root"}) == ["it does not run as 65532"]
    assert problems({**good, "Entrypoint": ["/bin/sh", "-c", "holdfast"]}) == ["its entry point is not holdfast itself"]
    assert len(problems({})) == 6


def test_the_compose_file_starts_two_replicas_with_secrets_from_files() -> None:
    compose = yaml.safe_load((TOP / "deploy" / "compose" / "compose.yaml").read_text())
    replicas = [compose["services"][name] for name in ("one", "two")]
    assert {each["environment"]["HOLDFAST_REPLICA_NAME"] for each in replicas} == {"one", "two"}
    assert all(each["read_only"] and each["cap_drop"] == ["ALL"] for each in replicas)
    assert all("file" in each for each in compose["secrets"].values())
    assert all(not each["image"].endswith(":latest") for each in compose["services"].values())
