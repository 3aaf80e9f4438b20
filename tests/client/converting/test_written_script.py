"""Scripts that a command writes before it starts them are the code of the job, or are refused."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from regroup.converting.conversion import Conversion, convert_script
from regroup.converting.draft import ConvertOptions
from regroup.converting.shell_text import ShellText
from regroup.converting.written_script import written_files
from tests.support.foreign_jobs import convert_one, problems

FUNCTION = """\
def train(lr):
    import torch.distributed as dist
    dist.init_process_group()
    print("rank\\t", dist.get_rank(), f"{lr} $", r"\\d+$")
"""
CODE = f"{FUNCTION}\ntrain(**{{'lr': 0.1}})"
OF_TRAINER = f"""
read -r -d '' SCRIPT << EOM

{CODE}


EOM
printf "%s" "$SCRIPT" > "main.py"
torchrun "main.py"
"""
"""As Kubeflow's SDK writes it for `CustomTrainer(func=train)`."""
PACKAGES = """
if ! [ -x "$(command -v pip)" ]; then
    python -m ensurepip || python -m ensurepip --user || apt-get install python-pip
fi

PACKAGES=(torch 'transformers[torch]')
if PIP_BREAK_SYSTEM_PACKAGES=1 python -m pip install --quiet \\
    --no-warn-script-location --user "${PACKAGES[@]}" >"pip.log" 2>&1; then
    echo "Successfully installed Python packages (user): ${PACKAGES[*]}"
else
    cat "pip.log" >&2
    exit 1
fi

"""
OF_OPERATOR = f"""
program_path=$(mktemp -d)
read -r -d '' SCRIPT << EOM

{CODE}

EOM
printf "%s" "$SCRIPT" > "$program_path/ephemeral_script.py"
python -u "$program_path/ephemeral_script.py\""""
"""As the SDK of the training operator writes it."""


def converted(text: str) -> Conversion:
    trainer = {"command": ["bash", "-c", text], "numNodes": 2}
    return convert_one(
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "gpt"},
            "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
        }
    )


@pytest.mark.parametrize("text", [OF_TRAINER, PACKAGES + OF_TRAINER, OF_OPERATOR])
def test_the_function_that_an_sdk_has_put_into_a_command_is_the_code_of_the_job(text: str) -> None:
    conversion = converted(text)
    assert problems(conversion) == [], conversion.refusal
    assert conversion.job is not None and conversion.config_map is not None
    assert conversion.config_map["data"] == {"main.py": f"{CODE}\n"}
    (container,) = conversion.job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-1] == "/regroup/code/main.py"
    notes = "\n".join(note.text for note in conversion.left_out)
    assert "SCRIPT" not in notes
    assert ("pip install" in notes) == (text[:30] in PACKAGES)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cat > a.py << E\nprint('$HOME')\nE\npython a.py", "would replace '?\\$HOME"),
        ("cat > a.py << E\n`date`\nE\npython a.py", "would replace '?`"),
        ("echo 'print()' > a.py\ntorchrun a.py", "written by the command itself"),
        ("cat << E | tee -a a.py\nx\nE\ntorchrun ./a.py", "written by the command itself"),
        ("cat > a.py << E\nx\nE\necho y >> a.py\npython a.py", "written by the command itself"),
        ("cat > /w/a.py << E\nx\nE\ncd /w\npython a.py", "may be the file that the command"),
        ("cat > a.py << E\nx\nE\npython -m a", "may be the file that the command"),
        ("cat > a.py << 'E'\n'$(RANK)'\nE\npython a.py", "which Kubernetes replaces"),
        ("read -r -d '' S << E\nE\nprintf '%s' $S > a.py\npython a.py", "is empty"),
    ],
)
def test_a_written_script_that_is_not_known_refuses_the_job(text: str, why: str) -> None:
    conversion = converted(text)
    assert conversion.job is None and conversion.refusal is not None
    assert conversion.refusal.place == ("spec", "trainer", "command")
    assert re.search(why, conversion.refusal.text), conversion.refusal.text


def test_a_file_that_is_only_an_argument_is_named_as_another_step() -> None:
    conversion = converted("cat > a.yaml << E\nlr: 1\nE\ntorchrun /opt/a.py --config a.yaml")
    assert conversion.job is not None and conversion.config_map is None
    assert any(note.text.startswith("cat > a.yaml") for note in conversion.left_out)


def test_a_script_that_sbatch_writes_is_the_code_too() -> None:
    text = "#!/bin/bash\n#SBATCH -N2\ncat > a.py <<- 'E'\n\tprint('$HOME')\n\tE\nsrun python ./a.py"
    conversion = convert_script(text, ConvertOptions())
    assert conversion.config_map is not None, conversion.refusal
    assert conversion.config_map["data"] == {"main.py": "print('$HOME')\n"}
    assert not any("has to be in the image" in check for check in conversion.checks)


@pytest.mark.parametrize("word", ["E", "'E'"])
@pytest.mark.parametrize(
    "body",
    [
        "print()", "\n\n  a\n b \n\n", r'r"\d+$" \$x \\ \" \`', "a \\\nb", "$, $ $) $' f'$%d' $|",
        "\ttab\n E\nE ", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "writes",
    [
        "cat > a.py << {word}\n{body}\nE\n",
        "cat <<{word} >a.py\n{body}\nE\n",
        "cat > a.py <<- {word}\n{body}\n\tE\n",
        'read -r -d \'\' S << {word}\n{body}\nE\nprintf "%s" "$S" > ./a.py\n',
    ],
)
def test_the_code_is_what_a_shell_writes(tmp_path: Path, writes: str, body: str, word: str) -> None:
    text = writes.format(word=word, body=body)
    code = written_files(ShellText(text, {}).commands)["a.py"].code()
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    assert code == (tmp_path / "a.py").read_text()
