"""What a bundle does not take along."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup.kubernetes.redaction import REDACTED, redacted, redacted_text


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "DB_PASSWORD: hunter2",
        '"api_key": "hunter2"',
        "Authorization: Bearer hunter2hunter2",
        "curl -H 'bearer hunter2hunter2'",
        "--token=hunter2 train",
        "https://me:hunter2@host/x",
        "export AWS_SECRET_ACCESS_KEY=hunter2",
        "credentials=hunter2",
        "client.secret.value = hunter2",
        "accessToken: hunter2",
        'login {\\"api_key\\": \\"hunter2\\"}',
        'password="a hunter2 b"',
        "sh -c 'train --token hunter2 --lr 1'",
        'train --hf-token "hunter2"',
        "password: 4711hunter2",
        "python train.py?auth_token=hunter2&step=1",
    ],
)
def test_secrets_are_found_by_their_name(text: str) -> None:
    assert "hunter2" not in redacted_text(text)
    assert REDACTED in redacted_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "a1" * 12,
        "ghp_" + "a1" * 12,
        "AKIA" + "A1" * 8,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
def test_secrets_are_found_by_their_form(text: str) -> None:
    assert redacted_text(f"login {text} done") == f"login {REDACTED} done"


@pytest.mark.parametrize(
    "text",
    [
        "step 120, loss 3.2, 41000 tokens/s",
        "the coordinator refused the token",
        "pod gpt-w0-1: no heartbeat for 2.0 s",
        "https://registry:5000/x",
        "tokens/s 41000",
        "token_sent",
        "tokens_per_second=41000.5 num_tokens: 4096 pad_token_id=50256",
        "tokenizer=gpt2 --tokenizer gpt2 --max-tokens 4096 --token-limit 512",
        "/run/secrets/token: Permission denied",
        "credentials.py:33: in load",
        "if token == expected:",
        "--use-token --lr 0.1",
        "use_password=False, token: None",
        "credentials:\n  user: me",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redacted_text(text) == text


WORDS = ("password", "passwd", "secret", "token", "credential", "api_key", "api-key", "apikey")
CASES = (str, str.upper, str.title)
VALUES = st.text("abcdefghijkXYZ0123456789_+/.-", min_size=9, max_size=40).filter(
    lambda value: value[0].isalpha() and value[-1].isalpha()
)


@given(
    word=st.sampled_from(WORDS),
    case=st.sampled_from(CASES),
    prefix=st.sampled_from(["", "AWS_", "my-", "db.", "HF_HUB_", "client"]),
    suffix=st.sampled_from(["", "_value", "_access_key", "-2"]),
    form=st.sampled_from(["{}={}", "{}: {}", '"{}": "{}"', "--{} {}", "--{}={}", "-c '--{} {} x'"]),
    value=VALUES,
)
def test_any_name_of_a_secret_hides_its_value(
    word: str, case: Callable[[str], str], prefix: str, suffix: str, form: str, value: str
) -> None:
    name = f"{prefix}{case(word)}{suffix}"
    if "--" in form:
        name = name.replace(".", "-")
    text = f"step 3 {form.format(name, f'q{value}q')} loss 2.5"
    assert value not in redacted_text(text)
    assert redacted_text(text).startswith("step 3 ")
    assert redacted_text(text).endswith(" loss 2.5")


NUMBERS = st.one_of(st.integers(0, 10**9), st.floats(0, 1e9).map(lambda x: f"{x:.4g}"))
ORDINARY = st.one_of(
    st.builds("{} {}".format, st.sampled_from(["step", "loss", "tokens/s", "rank", "lr"]), NUMBERS),
    st.builds("{}={}".format, st.sampled_from(["step", "tokens", "n_tokens", "token_id"]), NUMBERS),
    st.builds("{}: {}".format, st.sampled_from(["loss", "tokens_per_second", "key"]), NUMBERS),
    st.lists(st.sampled_from(["data", "secrets", "token", "gpt-w0-1", "x.py"]), min_size=1).map(
        lambda parts: "/" + "/".join(parts)
    ),
    st.sampled_from(["token_sent", "tokenizer=gpt2", "a secret of the job", "the token is new"]),
)


@given(st.lists(ORDINARY, max_size=8), st.sampled_from([" ", ", ", "\n"]))
def test_ordinary_lines_of_a_training_stay(parts: list[str], between: str) -> None:
    text = between.join(parts)
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "text", ["a" * 300_000, "token" * 60_000, "-" * 300_000, "token " * 50_000]
)
def test_a_long_line_takes_no_longer_for_each_of_its_characters(text: str) -> None:
    """A pattern that looks at the rest of the line from each place would take minutes."""
    begun = time.process_time()
    redacted_text(text)
    assert time.process_time() - begun < 10


def test_values_of_variables_go_and_those_of_the_training_stay() -> None:
    env = [
        {"name": "LOGIN", "value": "hunter2"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "REGROUP_TOKEN", "value": "hunter2"},
        {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        "odd",
    ]
    args = ["--token", "hunter2", "--tokenizer", "gpt2", "--token-limit", "9", "--lr", "1"]
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2", "a": "b"}
    document = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"env": env, "args": args}]},
    }
    found = redacted(document)
    assert "hunter2" not in str(found)
    assert found["metadata"]["annotations"] == {"a": "b"}
    (container,) = found["spec"]["containers"]
    assert container["env"][1]["value"] == "INFO"
    assert container["env"][3:] == env[3:]
    assert container["args"] == ["--token", REDACTED, *args[2:]]


def test_a_flag_of_a_secret_within_a_shell_command_hides_its_value() -> None:
    command = ["sh", "-c", "train --token hunter2 --lr 1"]
    found = redacted({"spec": {"containers": [{"command": command}]}})
    assert found["spec"]["containers"][0]["command"][2] == f"train --token {REDACTED} --lr 1"


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.sampled_from(["env", "a", "value"]), parts),
)


@given(st.dictionaries(st.text(), ANY))
def test_any_object_can_be_bundled(document: dict[str, object]) -> None:
    assert set(redacted(document)) == set(document)
