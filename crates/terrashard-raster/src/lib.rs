//! Windowed reading and streamed writing of georeferenced rasters
