"""What was typed and printed, as a page."""

from __future__ import annotations

from demo.walkthrough.transcript import WIDTH, Transcript, command_lines, shortened


def test_a_page_has_commands_with_what_they_printed() -> None:
    transcript = Transcript(hidden={"/tmp/user": "~"})
    transcript.heading("1. Install")
    transcript.typed("cat /tmp/user/a", "\x1b[32mfine\x1b[0m: http://127.0.0.1:80/?secret\n")
    transcript.checked("it is fine")
    assert transcript.markdown() == (
        "## 1. Install\n\n"
        "```console\n$ cat ~/a\nfine: http://127.0.0.1:80/?...\n```\n\n"
        "*Checked: it is fine.*\n"
    )


def test_a_long_command_stands_on_several_lines_that_can_be_typed() -> None:
    lines = command_lines("helm install " + "--set a.b=c " * 20)
    assert len(lines) > 2
    assert lines[0].startswith("$ helm install")
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert not lines[-1].endswith("\\")
    assert max(map(len, lines)) <= WIDTH


def test_a_long_value_has_a_line_of_its_own_and_the_command_can_be_typed() -> None:
    transcript = Transcript()
    value = "image=" + "x" * 85
    transcript.typed(f"helm install --set-string {value} --wait", "done\n")
    _, *lines, _, _ = transcript.markdown().splitlines()
    assert lines == ["$ helm install \\", "    --set-string \\", f"    {value} \\", "    --wait"]


def test_a_long_output_loses_its_middle() -> None:
    lines = shortened("\n".join(map(str, range(100))))
    assert lines[:2] == ["0", "1"]
    assert "..." in lines
    assert lines[-1] == "99"
    assert shortened("a\nb") == ["a", "b"]


def test_every_line_fits_the_page() -> None:
    transcript = Transcript()
    transcript.words("word " * 60)
    transcript.typed("true", "x" * 300 + " " + "y" * 50)
    transcript.block("text", "z " * 120)
    assert max(map(len, transcript.markdown().splitlines())) <= WIDTH
