"""kernels/generic"""
