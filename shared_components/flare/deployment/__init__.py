"""What a hospital's security officer signs: who takes part, what a startup kit allows, which jobs it gets."""
