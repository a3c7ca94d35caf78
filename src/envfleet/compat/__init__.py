"""Other packages' module names, for code that imports them and should run unchanged.

Importing this package installs nothing. Each module has an install(); `python -m envfleet.compat script.py` installs
them all and runs the script.

envpool                        EnvPool
env_wrappers                   env-wrappers (and baselines.common.vec_env)
envpool_protocol, envpool_wrap envpool_wrapper
ray_env_wrapper                RayEnvWrapper
pufferlib_vector               PufferLib 3's pufferlib.vector
gym_stand_in                   gym 0.25, where the real package is not installed
modules                        installing and removing module names
"""
