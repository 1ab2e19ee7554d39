"""`simulate`: the evidence of a made-up incident, with its truth beside it."""

from __future__ import annotations

from pathlib import Path

import click


def _list(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    del parameter
    if not value:
        return
    from nccl_forensics.simulate import PLATFORMS, SCENARIOS

    for scenario in sorted(SCENARIOS.values(), key=lambda s: s.name):
        click.echo(f"{scenario.name:24} {scenario.title} [{', '.join(dict.fromkeys(scenario.variants))}]")
    click.echo("\nplatforms:")
    for platform in PLATFORMS.values():
        click.echo(f"{platform.name:24} {platform.title} [{', '.join(platform.releases)}]")
    context.exit()


@click.command()
@click.argument("scenario")
@click.option(
    "-o", "--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for evidence/ and truth.json."
)
@click.option("--ranks", type=click.IntRange(2, 1 << 17), default=8, show_default=True, help="World size.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="The same seed gives the same bytes.")
@click.option("--platform", help="Machines; the seed chooses if left out.")
@click.option("--variant", help="What had been switched on and collected; the seed chooses if left out.")
@click.option("--release", help="NCCL release; the seed chooses if left out.")
@click.option("--rank", type=click.IntRange(0), help="The rank that the fault strikes.")
@click.option("--step", type=click.IntRange(0), help="The step in which the fault strikes, counted from the start of the job.")
@click.option("--detail", type=click.Choice(["auto", "full", "sampled", "thin"]), default="auto", show_default=True,
              help="Text logs of all ranks, or of one host in 16 and of ranks with errors (dumps of all; thin: of these only); auto: full up to 512 ranks.")  # fmt: skip
@click.option("--lost", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of files that are missing.")
@click.option("--torn", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Share of files that are cut off.")
@click.option("--also", multiple=True, metavar="SCENARIO", help="A lasting trouble that acts as well (repeatable).")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Print scenarios and platforms.")
def simulate(
    scenario: str,
    output: Path,
    ranks: int,
    seed: int,
    platform: str | None,
    variant: str | None,
    release: str | None,
    rank: int | None,
    step: int | None,
    detail: str,
    lost: float,
    torn: float,
    also: tuple[str, ...],
) -> None:
    """Write the evidence of a made-up incident: OUTPUT/evidence/ and OUTPUT/truth.json."""
    from nccl_forensics import simulate as simulator

    full = None if detail == "auto" else detail == "full"
    thin = detail == "thin"
    request = simulator.Request(scenario, ranks, seed, platform, variant, release, rank, step, full, thin, lost, torn, also)
    written = simulator.simulate(request, output)
    click.echo(f"{written} files in {output / 'evidence'}, truth in {output / 'truth.json'}")
