#!/usr/bin/env python3
"""Prints the result of a test run: skipped tests with their reasons, failures with their last lines, and one closing line.

    tools/test_summary.py JUNIT_FILE

Exit code 0 when at least one test ran and none failed, else 1.
"""
import collections
import re
import sys
import xml.etree.ElementTree


def skip_reason(output):
    """What a test said when it skipped itself: GoogleTest prints it below 'FILE:LINE: Skipped'."""
    found = re.search(r": Skipped\n(.*?)\n\s*\n?\[", output, re.DOTALL)
    if found and found.group(1).strip():
        return " ".join(found.group(1).split())
    found = re.search(r"^SKIPPED: (.*)$", output, re.MULTILINE)
    return found.group(1) if found else "no reason given"


SHOWN_FAILURES, SHOWN_LINES, SHOWN_WIDTH = 5, 12, 200


def last_lines(output):
    """The last lines that a failed test printed, without those of GoogleTest's own report."""
    lines = [line.rstrip() for line in output.splitlines()]
    said = [line for line in lines if line and not re.match(r"\[[ =\-A-Z]{10}\]|\s*\d+ FAILED TESTS?$", line)]
    return [line[:SHOWN_WIDTH] for line in said[-SHOWN_LINES:]]


def cases_of(output):
    """Of a program that runs many cases: what became of each, its name, and what was printed before that."""
    begin = 0
    for line in re.finditer(r"^case (passed|skipped|failed): (\S+).*$", output, re.MULTILINE):
        yield line.group(1), line.group(2), output[begin:line.start()]
        begin = line.end()


def main():
    if sys.argv[1:2] == ["--help"]:
        return print(__doc__)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        cases = xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        print(f"no test results: {error}")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    passed, failed, skipped = 0, [], collections.defaultdict(list)
    for case in cases:
        output = case.findtext("system-out") or ""
        several = list(cases_of(output))
        if several:
            passed += sum(what == "passed" for what, _, _ in several)
            for what, name, printed in several:
                if what == "skipped":
                    skipped[skip_reason(printed)].append(name)
            names = [(name, printed) for what, name, printed in several if what == "failed"]
            # It may have ended in the middle of a case, too.
            failed += names or ([] if case.get("status") == "run" else [(case.get("name"), output)])
        elif case.get("status") == "run":
            passed += 1
        elif case.get("status") in ("notrun", "disabled"):
            disabled = case.get("status") == "disabled"
            unavailable = case.find("skipped") is not None and "Unable to find" in case.find("skipped").get("message", "")
            if unavailable:
                failed.append((case.get("name"), ""))
            else:
                skipped["disabled in the source" if disabled else skip_reason(output)].append(case.get("name"))
        else:
            failed.append((case.get("name"), output))

    if skipped:
        print("skipped:")
        for reason, names in sorted(skipped.items()):
            print(f"  {reason}")
            for name in names:
                print(f"    {name}")
    if failed:
        print("failed:")
        for index, (name, output) in enumerate(failed):
            print(f"  {name}")
            for line in last_lines(output) if index < SHOWN_FAILURES else []:
                print(f"    | {line}")
    print(f"{passed} passed, {len(failed)} failed, {sum(map(len, skipped.values()))} skipped")
    return 1 if failed or passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
