"""python -m woh_faiss_cli, for where scripts are not on the path."""

from .main import main

main(prog_name="woh-index")
