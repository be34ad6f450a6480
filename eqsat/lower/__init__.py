"""From a form and a schedule to the kernel IR: phases of loads, carries and stores."""
