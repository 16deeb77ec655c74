"""`python -m ludus` is `ludus`."""

from ludus.cli.main import main

main()
