"""What is known about the machine: systems as data, modules, batch systems, packages of the distribution."""
