"""`serve`: the upload page."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to bind. Other than loopback only with a token or --insecure."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the store. Default: NCCL_FORENSICS_DATA, else the user's folder for data.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the token that every call must show. Default: NCCL_FORENSICS_TOKEN; without either nobody is asked for one.",
)
@click.option("--insecure", is_flag=True, help="Bind to an address that others can reach without a token.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Answer under this name as well (behind a proxy, without a token).")
@click.option("--max-upload-gb", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Largest upload, 10^9 bytes.")
@click.option(
    "--reserve-mb",
    type=click.IntRange(0, 10_000_000),
    default=1024,
    show_default=True,
    help="Disk space that uploads leave free, 2^20 bytes.",
)
@click.option(
    "--analyses", type=click.IntRange(1, 64), default=1, show_default=True, help="Analyses at the same moment; each uses all processors."
)
@click.option(
    "--analysis-memory-mb",
    type=click.IntRange(64, 100_000_000),
    help="Memory of one analysis, 2^20 bytes. Default: three quarters of this machine's.",
)
@click.option("--analysis-minutes", type=click.IntRange(1, 100_000), default=60, show_default=True, help="Longest analysis.")
@click.option(
    "--stall-seconds", type=click.IntRange(1, 3600), default=60, show_default=True, help="Let a client go that sends nothing for so long."
)
@click.option("--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file with thresholds and suppressions.")
def serve(
    host: str,
    port: int,
    data: Path | None,
    token_file: Path | None,
    insecure: bool,
    allowed_host: tuple[str, ...],
    max_upload_gb: int,
    reserve_mb: int,
    analyses: int,
    analysis_memory_mb: int | None,
    analysis_minutes: int,
    stall_seconds: int,
    config: Path | None,
) -> None:
    """The upload page: drop a tarball in the browser, watch it being read, read and keep the postmortems."""
    try:
        from nccl_forensics.serve import server
    except ImportError as problem:
        raise click.ClickException(
            f"serve needs more packages ({problem.name} is missing): pip install 'nccl-forensics[serve]'"
        ) from problem
    from nccl_forensics.config import load
    from nccl_forensics.serve.access import local_hosts
    from nccl_forensics.serve.settings import Settings, default_data, is_loopback, physical_memory, read_token

    if config is not None:
        load(config)  # a mistake in it is told now, not by every incident
    token = read_token(token_file)
    settings = Settings(
        data=(data or default_data()).resolve(),
        token=token,
        hosts=local_hosts((host, *allowed_host)) if token is None and is_loopback(host) else frozenset(),
        upload_bytes=max_upload_gb * 10**9,
        reserve_bytes=reserve_mb << 20,
        analyses=analyses,
        analysis_bytes=analysis_memory_mb << 20 if analysis_memory_mb else physical_memory() * 3 // 4,
        analysis_seconds=analysis_minutes * 60.0,
        idle_seconds=float(stall_seconds),
        config=config.resolve() if config is not None else None,
    )

    def announce(url: str) -> None:
        click.echo(f"serving {settings.data} at {url}")

    if token is not None and len(token) < 16:
        click.echo("nccl-forensics: the token is short; 16 random characters or more cannot be guessed", err=True)
    server.serve(settings, host, port, insecure=insecure, announce=announce)
