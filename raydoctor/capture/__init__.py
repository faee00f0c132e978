"""What files a diagnosis reads, and what each one is."""
