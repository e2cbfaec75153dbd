"""What a stack deploys: the platform, and on it the apps."""
