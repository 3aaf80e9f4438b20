"""What hundreds and thousands of workers cost whoever coordinates them."""
