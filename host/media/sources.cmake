# The readers of images, relative to this folder, and the libraries they need; also built into the fuzzers.
set(ATELIER_MEDIA_DECODERS
  bmp.cpp
  decode.cpp
  exif.cpp
  gif.cpp
  jpeg.cpp
  png.cpp
  ppm.cpp
  raster.cpp
  tiff.cpp
  webp.cpp)
# What needs FFmpeg.
set(ATELIER_VIDEO_SOURCES
  ffmpeg/demuxer.cpp
  ffmpeg/frame_converter.cpp
  ffmpeg/input_file.cpp
  ffmpeg/packet_index.cpp
  ffmpeg/reader.cpp
  ffmpeg/sound.cpp
  ffmpeg/sound_encoder.cpp
  ffmpeg/writer.cpp
  raster.cpp)

if(NOT TARGET atelier_codecs)
  find_package(GIF 5.1 REQUIRED)
  find_package(JPEG REQUIRED)
  find_package(PNG REQUIRED)
  find_package(TIFF 4.5 REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)
  add_library(atelier_codecs INTERFACE)
  target_link_libraries(atelier_codecs INTERFACE GIF::GIF JPEG::JPEG PNG::PNG TIFF::TIFF PkgConfig::WEBP)
endif()
