"""The Helm chart, value by value: each does what its comment says, what it renders to is valid by the schemas of Kubernetes,
and a name that is not there is refused. The chart is a copy of its folder alone, so it needs nothing else of the repository.

Run by tests/program/deploy/values.rs: CHART LIST. The objects of all cases are written to LIST, for an API server."""

import json
import os
import re
import shutil
import sys
import tempfile

import yaml
from helm_python import Chart
from helm_python.chart import lint
from helm_python.errors import HelmError

from cases import CASES, NOTES, REFUSED
from manifests import NEWEST, faults

ABSENT = object()
# The table of values is between these lines.
BEGIN = "<!-- Written from values.yaml by UPDATE_DOCS=1 cargo xtask test deploy -->\n\n"
END = "\n\n<!-- End of the table -->\n"


def rendered(chart, values, **names):
    """Path in the chart to text."""
    names = {"name": "energy-agent", "namespace": "energy-agent", **names}
    return chart.render(values, **names)


def objects(texts):
    found = {}
    for path, text in texts.items():
        if path.endswith("NOTES.txt"):
            continue
        for document in yaml.safe_load_all(text):
            if document:
                name = document["kind"], document["metadata"]["name"]
                assert name not in found, f"{name} is there twice"
                found[name] = document
    return found


def at(document, path):
    """What is at a path such as spec/containers/0/name; a slash in a name is written ~1."""
    for step in path.split("/"):
        step = step.replace("~1", "/")
        if isinstance(document, list):
            document = document[int(step)] if int(step) < len(document) else ABSENT
        else:
            document = document.get(step, ABSENT) if isinstance(document, dict) else ABSENT
    return document


def holds(expected, found):
    """Equal; `...` as the first item of a list stands for whatever is before the rest."""
    if isinstance(expected, list) and expected[:1] == [...]:
        return isinstance(found, list) and all(item in found for item in expected[1:])
    return found is ABSENT if expected is None else expected == found


def check_cases(chart, failures):
    """Every case; what it rendered that no other did."""
    kept, base = {}, objects(rendered(chart, {}))
    for values, names, expectations in CASES:
        found = objects(rendered(chart, values, **names))
        for document in found.values():
            text = json.dumps(document, sort_keys=True)
            if text not in kept:
                kept[text] = document
                failures += [f"{values}: {document['kind']}: {fault}" for fault in faults(document, [NEWEST])]
        if found == base and not names:
            failures.append(f"{values} changes nothing")
        for (kind, name, *path), expected in expectations:
            document = found.get((kind, name))
            if not path:
                is_right = (document is not None) == expected
            else:
                is_right = document is not None and holds(expected, at(document, path[0]))
            if not is_right:
                seen = document and path and at(document, path[0])
                failures.append(f"{values}: {kind} {name} {path}: expected {expected!r}, found {seen!r}")
    return list(kept.values())


def check_refused(chart, failures):
    for values, *named in REFUSED:
        try:
            rendered(chart, values)
            failures.append(f"{values} is not refused")
        except HelmError as error:
            failures += [f"{values}: {name} is not in: {error}" for name in named if name not in str(error)]


def check_notes(chart, failures):
    for values, *negation, sentence in NOTES:
        notes = [text for path, text in rendered(chart, values).items() if path.endswith("NOTES.txt")]
        assert len(notes) == 1, f"{len(notes)} files of notes"
        if (sentence in notes[0]) == bool(negation):
            failures.append(f"notes with {values}: expected {' '.join(negation)} {sentence!r} in: {notes[0]}")


def rows(text):
    """Path, comment and default of every value: of a key with a comment, if nothing below it has one."""
    values, path, comment, found = yaml.safe_load(text), [], [], []
    for line in text.splitlines():
        if re.match(r" *#", line):
            comment.append(line.strip()[1:].strip())
            continue
        key = re.match(r"( *)([A-Za-z]\w*):", line)
        if key:
            path = path[: len(key[1]) // 2] + [key[2]]
            if comment:
                found.append((".".join(path), " ".join(comment)))
            elif not line.rstrip().endswith(":") and not any(".".join(path).startswith(f"{name}.") for name, _ in found):
                raise AssertionError(f"{'.'.join(path)} has no comment in values.yaml")
        comment = []

    def default(path):
        value = values
        for name in path.split("."):
            value = value[name]
        return json.dumps(value)

    return [(path, text, default(path)) for path, text in found]


def check_readme(folder, failures):
    with open(f"{folder}/values.yaml", encoding="utf-8") as text:
        found = rows(text.read())
    lines = ["| value | default | what it does |", "| --- | --- | --- |"]
    lines += [f"| `{path}` | `{default}` | {text} |" for path, text, default in found]
    with open(f"{folder}/README.md", encoding="utf-8") as text:
        readme = text.read()
    before, after = readme.partition(BEGIN)[0], readme.partition(END)[2]
    expected = before + BEGIN + "\n".join(lines) + END + after
    if readme != expected:
        if "UPDATE_DOCS" in os.environ:
            with open(f"{folder}/README.md", "w", encoding="utf-8") as text:
                text.write(expected)
        else:
            failures.append("README.md of the chart is old: run UPDATE_DOCS=1 cargo xtask test deploy")
    # Every value has a case.
    given = set()

    def walk(values, path):
        given.add(path)
        for name, value in values.items() if isinstance(values, dict) else ():
            walk(value, f"{path}.{name}" if path else name)

    for values, _, _ in CASES:
        walk(values, "")
    failures += [f"no case in cases.py sets {path}" for path, _, _ in found if path not in given]


def check_schema(folder, failures):
    """Names of the values and of the schema are the same, and no other is taken."""
    with open(f"{folder}/values.schema.json", encoding="utf-8") as text:
        schema = json.load(text)
    with open(f"{folder}/values.yaml", encoding="utf-8") as text:
        values = yaml.safe_load(text)
    values["global"] = {}

    def walk(schema_part, value, path):
        schema_part = schema["definitions"].get(schema_part.get("$ref", "").rpartition("/")[2], schema_part)
        if "properties" not in schema_part:
            return
        if schema_part.get("additionalProperties") is not False:
            failures.append(f"the schema takes any name in {path or 'the values'}")
        # Fields of Kubernetes (timing, resources) are not all in use.
        is_ours = path.rpartition(".")[2] not in ("livenessProbe", "readinessProbe", "resources", "affinity", "rollingUpdate")
        if is_ours and schema_part["properties"].keys() != value.keys():
            failures.append(f"{path or 'values'}: in the schema {schema_part['properties'].keys() ^ value.keys()}")
        for name, inner in value.items():
            walk(schema_part["properties"].get(name, {}), inner, f"{path}.{name}" if path else name)

    walk(schema, values, "")


def main():
    source, target = sys.argv[1:]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(source, f"{folder}/energy-agent", symlinks=True)
        for parent, folders, files in os.walk(copy):
            failures += [f"{name} is a link" for name in folders + files if os.path.islink(f"{parent}/{name}")]
        chart = Chart.load(copy)
        documents = check_cases(chart, failures)
        check_refused(chart, failures)
        check_notes(chart, failures)
        report = lint(copy, strict=True)
        failures += [f"helm lint: {message}" for message in report["messages"] if message["severity"] > 1]
        # As a part of another chart, with what the parts of that have in common.
        parent = f"{folder}/parent"
        os.makedirs(f"{parent}/charts")
        with open(f"{parent}/Chart.yaml", "w", encoding="utf-8") as text:
            text.write("apiVersion: v2\nname: parent\nversion: 1.0.0\n")
        shutil.copytree(copy, f"{parent}/charts/energy-agent")
        part = objects(rendered(Chart.load(parent), {"global": {"registry": "a"}}, name="site"))
        if ("DaemonSet", "site-energy-agent") not in part:
            failures.append(f"as a part of another chart: {part.keys()}")
    check_readme(source, failures)
    check_schema(source, failures)
    with open(target, "w", encoding="utf-8") as text:
        json.dump(documents, text)
    print("\n".join(failures) or f"{len(CASES)} cases, {len(documents)} objects")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
