"""usage: conda.py OUTPUT: renders, builds and tests the conda recipe.

It is rendered for each platform with the tools of conda-forge, then built into OUTPUT with those of
this machine, without a channel. TCUDA_PREBUILT_DIR is as in the recipe; rattler_build is on
PYTHONPATH.
"""

import os
import pathlib
import sys

from rattler_build import (
    EnvironmentIsolation,
    PlatformConfig,
    RenderConfig,
    Stage0Recipe,
    ToolConfiguration,
    VariantConfig,
)
from rattler_build.progress import SimpleProgressCallback

FOLDER = pathlib.Path("packaging/conda")
NEEDED = ("gcc_{}", "rust_{}", "sysroot_{}")


def render(platform):
    """The recipe as conda-forge builds it: its compilers must be those for the platform."""
    config = RenderConfig(platform=PlatformConfig(target_platform=platform))
    recipe = Stage0Recipe.from_file(FOLDER / "recipe.yaml")
    (variant,) = recipe.render(VariantConfig.from_file(FOLDER / "variants.yaml"), config)
    tools = [str(tool).split()[0] for tool in variant.recipe.to_dict()["requirements"]["build"]]
    print(f"{platform}: {', '.join(tools)}")
    missing = [name.format(platform) for name in NEEDED if name.format(platform) not in tools]
    assert not missing, f"{platform} builds without {missing}"


def build(output):
    os.environ["TCUDA_SYSTEM_TOOLS"] = "1"
    recipe = Stage0Recipe.from_file(FOLDER / "recipe.yaml")
    (result,) = recipe.run_build(
        tool_config=ToolConfiguration(test_strategy="native"), output_dir=output, channels=[],
        progress_callback=SimpleProgressCallback(), env_isolation=EnvironmentIsolation.NONE,
    )
    print(*result.packages)


def main():
    prebuilt = os.environ.pop("TCUDA_PREBUILT_DIR", None)
    for platform in ("linux-64", "linux-aarch64"):
        render(platform)
    if prebuilt:
        os.environ["TCUDA_PREBUILT_DIR"] = prebuilt
    build(pathlib.Path(sys.argv[1]).resolve())


main()
