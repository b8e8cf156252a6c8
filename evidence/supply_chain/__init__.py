"""What a security officer asks of the packages that SurgFL stands on: `make supply-chain`."""
