"""Takes the noisy steps that every private gradient descent here is made of, and resumes them."""
