from superformer.cli import main

main()
