"""One measurement of `bench raster` with rasterio: prints seconds, seconds of all threads, peak bytes and versions."""
import resource
import sys
import time

import rasterio
import rasterio.shutil
from rasterio.windows import Window


def windows(path, side, step):
    """Reads all bands of every window."""
    total = 0
    with rasterio.open(path) as scene:
        for row in range(0, scene.height, step):
            for column in range(0, scene.width, step):
                width = min(side, scene.width - column)
                height = min(side, scene.height - row)
                total += int(scene.read(window=Window(column, row, width, height))[0, 0, 0])
    return total


def cog(source, target):
    """Copies a scene into a Cloud Optimized GeoTIFF."""
    rasterio.shutil.copy(
        source,
        target,
        driver="COG",
        compress="DEFLATE",
        predictor="YES",
        blocksize=512,
        overview_resampling="average",
    )


def strips(source, target):
    """Copies a scene into strips of one row, as many exports have them."""
    rasterio.shutil.copy(source, target, driver="GTiff", compress="LZW", blockysize=1, bigtiff="IF_SAFER")


threads, action, *arguments = sys.argv[1:]
with rasterio.Env(GDAL_NUM_THREADS=threads):
    began, cpu = time.perf_counter(), time.process_time()
    if action == "windows":
        windows(arguments[0], int(arguments[1]), int(arguments[2]))
    elif action == "cog":
        cog(*arguments)
    else:
        strips(*arguments)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(seconds, cpu, peak, f"rasterio {rasterio.__version__}, GDAL {rasterio.__gdal_version__}", sep="\t")
