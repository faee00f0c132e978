"""What the rules about pods and machines of Slurm share."""
