"""`make image`: builds the images of the Dockerfile and exports them for clusters without a
registry.
"""
