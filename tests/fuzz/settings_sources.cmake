# Readers of settings, and what they need of the host, without LibTorch; relative to the repository.
set(ATELIER_SETTINGS_SOURCES
  host/data/folder_files.cpp
  host/files/file_reader.cpp
  host/files/yaml.cpp
  host/flags/compat_flags.cpp
  host/flags/flags.cpp
  host/flags/help.cpp
  host/report/error_line.cpp
  host/report/problems.cpp
  host/report/text.cpp
  host/order/config_file.cpp
  host/foreign/kohya_dataset.cpp
  sdk/src/error.cpp)
