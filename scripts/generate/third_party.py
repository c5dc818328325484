"""usage: third_party.py TRIPLE SYSROOT FOLDER: what of others is in the libraries for a target.

Writes THIRD_PARTY.txt, the licences of the crates and of Rust's standard library, and
tcuda.cdx.json, a CycloneDX 1.5 list of components. Both come from `cargo metadata`, Cargo.lock and
the files of each crate. Crates that only build others (build scripts, macros) are in neither.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib

LIBRARIES = ("tcuda", "tcuda_sim_library")
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE)", re.IGNORECASE)
RUST_TEXTS = ("Apache-2.0", "MIT")


def metadata(triple):
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={triple}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def is_linked(kinds):
    """Is a dependency of these kinds part of what is built? None is the normal kind."""
    return any(kind["kind"] is None for kind in kinds)


def linked(found):
    """The packages in the libraries, by id, each with the ids of those that it uses."""
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    macros = {
        id for id, package in packages.items()
        if any("proc-macro" in target["kind"] for target in package["targets"])
    }
    uses, queue = {}, [id for id, package in packages.items() if package["name"] in LIBRARIES]
    while queue:
        id = queue.pop()
        if id in uses:
            continue
        uses[id] = [
            of["pkg"] for of in nodes[id]["deps"]
            if is_linked(of["dep_kinds"]) and of["pkg"] not in macros
        ]
        queue += uses[id]
    return packages, uses


def licence_texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    return [
        (path.name, path.read_text().strip()) for path in sorted(folder.iterdir())
        if path.is_file() and TEXTS.match(path.name)
    ]


def notices(packages, sysroot, rust):
    parts = [
        "libtcuda.so, libtcuda.a and libtcuda_sim.so contain code of these projects.\n"
    ]
    for package in packages:
        texts = licence_texts(package)
        title = f"{package['name']} {package['version']}, {package['license']}"
        if not texts:
            sys.exit(f"{title}: the crate has no file with its licence")
        parts += ["=" * 80, f"{title}\n{package['repository']}\n"]
        parts += [f"---- {name}\n\n{text}\n" for name, text in texts]
    parts += ["=" * 80, f"Rust's standard library {rust}, MIT OR Apache-2.0",
              "https://github.com/rust-lang/rust, with crates of the same licences\n"]
    folder = pathlib.Path(sysroot) / "share/doc/rust/licenses"
    for name in RUST_TEXTS:
        parts.append(f"---- {name}\n\n{(folder / f'{name}.txt').read_text().strip()}\n")
    return "\n".join(parts)


def component(package, checksums):
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    entry = {
        "type": "library", "bom-ref": purl, "name": name, "version": version,
        "description": package["description"], "scope": "required",
        "licenses": [{"expression": package["license"]}], "purl": purl,
    }
    if (name, version) in checksums:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def bill(packages, uses, triple, rust):
    lock = tomllib.loads(pathlib.Path("Cargo.lock").read_text())["package"]
    checksums = {(of["name"], of["version"]): of.get("checksum") for of in lock}
    checksums = {key: value for key, value in checksums.items() if value}
    entries = {id: component(packages[id], checksums) for id in uses}
    main = next(id for id in uses if packages[id]["name"] == "tcuda")
    standard = {
        "type": "library", "bom-ref": f"pkg:generic/rust-std@{rust}", "name": "rust-std",
        "version": rust, "licenses": [{"expression": "MIT OR Apache-2.0"}],
        "purl": f"pkg:generic/rust-std@{rust}",
    }
    order = sorted(uses, key=lambda id: entries[id]["bom-ref"])
    ends = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ends)),
            "component": entries[main],
            "properties": [{"name": "target", "value": triple}],
        },
        "components": [entries[id] for id in order if id != main] + [standard],
        "dependencies": [
            {
                "ref": entries[id]["bom-ref"],
                "dependsOn": sorted(entries[of]["bom-ref"] for of in uses[id])
                + [standard["bom-ref"]],
            }
            for id in order
        ],
    }


def main():
    triple, sysroot, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    packages, uses = linked(metadata(triple))
    rust = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True)
    rust = rust.stdout.split()[1]
    others = sorted(
        (packages[id] for id in uses if packages[id]["source"]),
        key=lambda package: package["name"],
    )
    (folder / "THIRD_PARTY.txt").write_text(notices(others, sysroot, rust))
    text = json.dumps(bill(packages, uses, triple, rust), indent=1)
    (folder / "tcuda.cdx.json").write_text(text + "\n")


main()
