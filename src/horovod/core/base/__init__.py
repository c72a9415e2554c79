"""The ground floor: values and checks that everything above uses; it imports nothing above."""
