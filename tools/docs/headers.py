"""Headers as Doxygen reads them: plain comments become its own, line for line, so that warnings name lines of the real file.

A comment holds for the functions and types below it, up to the next comment or blank line; one behind a declaration, for that
declaration; the one that opens a header, for the header and for the type that the header is called after, or else for the first
type or function in it that has none. The text of comments is Markdown and nothing else: what Doxygen would take for a command is
escaped. Relies on clang-format's indentation: a declaration begins where its scope is indented to, and what goes on lies deeper.
"""
import re

_TYPE = re.compile(r"(?:template <.*> )?(?:class|struct|union|enum class|enum)\s+(?:alignas\(\w+\)\s+)?(\w+)")
_NO_NAME = re.compile(r"#|[})]|(?:inline )?namespace|\w+:$|extern |static_assert|using namespace|using [\w:]+;|friend |private:")
_SELF_EVIDENT = re.compile(r"= (default|delete);|\boperator\b|\boverride\b|\(\) const\b|^~|^(explicit )?[A-Z]\w*\(")
_FORWARD = re.compile(r"(?:template <.*> )?(?:class|struct|enum class) \w+(?: : [\w:]+)?;")


def escape(text):
    """Markdown in which Doxygen finds no command, tag or link of its own; code between backticks stays as it is."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"((?<!\w)::|[\\@<>#%&$])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def texts_of(block):
    """What a block of comment lines says, as Markdown, line for line; indented examples as code."""
    texts, code = [], False
    for line in block:
        text = re.sub(r"^\s*//+<?", "", line).removeprefix(" ")
        if text.startswith("  ") and (code or not texts or not texts[-1]):
            code = not re.match(r"\s+([-*]|\d+\.) ", text)
        elif text:
            code = False
        texts.append("    " + text if code else escape(text))
    return texts


def _code_and_comment(line):
    """The two halves of a line; the second is empty where nothing is said behind its code."""
    for match in re.finditer(r"\s//+<?\s?", line):
        if line[:match.start()].count('"') % 2 == 0:
            return line[:match.start()].rstrip(), line[match.end():]
    return line, ""


def _indentation(line):
    return len(line) - len(line.lstrip())


class _Header:
    def __init__(self, path, text):
        self.path, self.lines, self.out = path, text.split("\n"), []
        self.scopes = []          # of each: where its opening line is indented to, what is in it: names, namespace or body
        self.begun = ""           # the declaration under way
        self.above = None         # lines of output that are the comment right above
        self.holds = ""           # what the paragraph's comment says, for those that follow
        self.without = []         # lines at which types and functions of namespaces begin that have no comment, with their names

    def run(self):
        stem = re.sub(r"_(\w)", lambda match: match[1].upper(), "_" + self.path.stem)
        number = 0
        while number < len(self.lines):
            end = number
            while end < len(self.lines) and self.lines[end].lstrip().startswith("//"):
                end += 1
            if end > number:
                self.block(self.lines[number:end])
            else:
                self.line(self.lines[number])
            number = max(end, number + 1)
        for at, _ in sorted(self.without, key=lambda each: each[1] != stem)[:1]:
            self.out[at] = f"/** @copydoc {self.path} */ {self.out[at]}"
        return "\n".join(self.out)

    def here(self):
        """What is in the scope, and where its declarations begin."""
        indent, kind = self.scopes[-1] if self.scopes else (0, "namespace")
        return kind, indent if kind == "namespace" else indent + 2

    def block(self, block):
        kind, indent = self.here()
        blanks = _indentation(block[0])
        if kind == "body":
            self.out += block
        elif len(self.out) == 1:
            self.out = ["/// @file", *(f"/// {text}".rstrip() for text in texts_of(block))]
        elif blanks > indent:  # goes on behind a declaration
            self.out += [" " * blanks + f"///< {text}".rstrip() for text in texts_of(block)]
        else:
            self.above = slice(len(self.out), len(self.out) + len(block))
            self.out += [" " * blanks + f"/// {text}".rstrip() for text in texts_of(block)]
            self.holds = " ".join(text.strip() for text in texts_of(block)).strip()

    def line(self, line):
        kind, indent = self.here()
        code, comment = _code_and_comment(line)
        word = code.strip()
        if word.startswith("}") and self.scopes and _indentation(line) <= self.scopes[-1][0]:
            self.scopes.pop()
        elif not word and kind != "body":
            if self.above:  # a remark between declarations, of none of them
                self.out[self.above] = [text.replace("///", "//", 1) for text in self.out[self.above]]
            self.holds = ""
        elif kind != "body":
            if _indentation(line) == indent and not self.begun:
                line = self.declaration(line, word, comment, in_type=kind == "type")
            if comment and not _NO_NAME.match(word):
                line = line if _TYPE.match(word) else f"{code}  ///< {escape(comment)}"
            self.begun = f"{self.begun} {word}".strip()
        self.out.append(line)
        self.above = None
        if code.endswith("{"):
            head = self.begun if kind != "body" else ""
            self.scopes.append((_indentation(line), "namespace" if re.match(r"(inline )?namespace", word) else
                                "type" if _TYPE.match(head) and "(" not in re.sub(r"template <.*?> |alignas\(\w+\)", "", head) else "body"))
            if self.scopes[-1][1] != "body":
                self.holds = ""
        if code.endswith((";", "{", "}", ":", ",")) and not (code.endswith(",") and "(" in self.begun) or not word:
            self.begun = ""

    def declaration(self, line, word, comment, in_type):
        """The line at which a declaration begins, with the comment that holds for it, where it is not right above."""
        if _NO_NAME.match(word) or _FORWARD.match(word):
            return line
        type_ = _TYPE.match(word)
        if comment and type_:
            return f"{' ' * _indentation(line)}/** {escape(comment)} */ {word}"
        if self.above or comment:
            return line
        if self.holds and not _SELF_EVIDENT.search(word) and (type_ or "(" in word or word.startswith("template") or not in_type):
            return f"{' ' * _indentation(line)}/** {self.holds} */ {line.lstrip()}"
        if not in_type:
            name = type_[1] if type_ else re.sub(r"[^\w].*", "", word.split("(")[0].split()[-1])
            self.without.append((len(self.out), name))
        return line


def as_doxygen_reads_it(path, text):
    """`path`: by which the header is included."""
    return _Header(path, text).run()
