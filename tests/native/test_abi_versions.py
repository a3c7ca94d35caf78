"""A plug-in that was built with other headers than the engine's is refused with a sentence, never loaded.

The plug-ins are plain C, as abi.h is: an env type that is never asked for anything.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from envfleet import CompileError
from envfleet.building.compiling import load_plugin
from envfleet.envs.compiler import find_compiler, get_include

SOURCE = r"""
#include "abi.h"
static const ef_env_type type = {.id = "FromC-v0", .doc = ""};
static const ef_env_type* const types[] = {&type};
__attribute__((visibility("default"))) const ef_plugin* envfleet_plugin_v1(void) {
  static ef_plugin plugin = {.abi_version = ENVFLEET_ABI_VERSION, .num_types = NUM_TYPES, .types = types};
#ifdef ENVFLEET_ABI_LAYOUT
  plugin.layout = ENVFLEET_ABI_LAYOUT;
#endif
  return &plugin;
}
"""
HEADER = (get_include() / "envfleet" / "abi.h").read_text()
STRUCTS = re.findall(r"^} (ef_\w+);$", HEADER, flags=re.MULTILINE)
STRUCTS = [name for name in STRUCTS if f"typedef struct {name} {{" in HEADER]
VERSION = int(re.search(r"ENVFLEET_ABI_VERSION (\d+)u", HEADER)[1])


def build(folder: Path, header: str, num_types: int = 1) -> Path:
    (folder / "abi.h").write_text(header)
    (folder / "plugin.c").write_text(SOURCE)
    library = folder / "plugin.so"
    flags = [
        "-x",
        "c",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
        "-fPIC",
        "-shared",
    ]
    command = [*find_compiler(), *flags, f"-DNUM_TYPES={num_types}", str(folder / "plugin.c"), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


def test_the_header_is_plain_c_and_lists_every_struct(tmp_path):
    # Past the comparison of versions, where the missing env is found.
    with pytest.raises(CompileError, match="registers no env"):
        load_plugin(build(tmp_path, HEADER, num_types=0))
    assert len(STRUCTS) == 12
    sizes = HEADER[HEADER.index("#define EF_ADD_SIZE") :]
    for name in STRUCTS:
        assert re.search(rf"\b{name}\b", sizes), f"{name} is missing from ENVFLEET_ABI_LAYOUT"


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, 4_000_000_000])
def test_another_version(tmp_path, version):
    header = HEADER.replace(f"ENVFLEET_ABI_VERSION {VERSION}u", f"ENVFLEET_ABI_VERSION {version}u")
    with pytest.raises(
        CompileError, match=rf"built for ABI version {version} .* has version {VERSION}; compile it again"
    ):
        load_plugin(build(tmp_path, header))


def test_the_first_version_had_no_layout(tmp_path):
    header = HEADER.replace(f"ENVFLEET_ABI_VERSION {VERSION}u", "ENVFLEET_ABI_VERSION 1u")
    header = re.sub(r"  uint64_t layout;.*\n", "", header)
    header = header.replace("#define ENVFLEET_ABI_LAYOUT ", "#define EF_NO_LAYOUT ")
    with pytest.raises(CompileError, match=rf"built for ABI version 1 .* has version {VERSION}"):
        load_plugin(build(tmp_path, header))


@pytest.mark.parametrize("name", STRUCTS)
def test_a_larger_struct_of_the_same_version(tmp_path, name):
    header = HEADER.replace(f"\n}} {name};", f"\n  void* added_later[2];\n}} {name};")
    assert header != HEADER
    with pytest.raises(CompileError, match="structs of other sizes; compile it again"):
        load_plugin(build(tmp_path, header))


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("ef_env_type", r"  int32_t \(\*fields_changed\).*\n"),
        ("ef_host", r"  int64_t \(\*poisson\).*\n"),
        ("ef_rows", r"  void\* fault_context;\n"),
        ("ef_spec", r"  double reward_threshold;.*\n"),
    ],
)
def test_a_smaller_struct_of_the_same_version(tmp_path, name, member):
    header, count = re.subn(member, "", HEADER)
    assert count == 1
    with pytest.raises(CompileError, match="structs of other sizes; compile it again"):
        load_plugin(build(tmp_path, header))
