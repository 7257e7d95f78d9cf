#pragma once
// Opening a file that is appended to, locked or written. A symbolic link in its place is not followed, and a
// FIFO is not opened. Another writer of the folder cannot redirect a write to a file elsewhere, nor make an
// open wait. Whole files are written with open_folder.h. The path of the folder may contain links (runs ->
// /disk/runs). Thread-safe.

#include <fcntl.h>

#include <filesystem>
#include <string>

#include "trireme/base/file_descriptor.h"

namespace trireme {

/// openat(2) in the folder of the path, with these flags, O_NOFOLLOW and O_CLOEXEC, and `mode` for a new
/// file. Not open, with errno: ELOOP for a symbolic link, ENXIO for a FIFO or a socket.
FileDescriptor open_file(const std::filesystem::path& path, int flags, mode_t mode = 0666);

/// A new file to write. A file or a symbolic link of that name is removed first. Not open, with errno, on
/// failure.
FileDescriptor create_file(const std::filesystem::path& path, mode_t mode = 0666);

/// A file to read, which links may lead to. Not open, with errno: ENXIO for a FIFO with a name, whose other
/// end may never come, and for a socket. A pipe of the shell, as in --secret-file <(command), is read.
FileDescriptor open_to_read(const std::filesystem::path& path);

/// Words for an errno of an opening: "it is a symbolic link, ..." for ELOOP, else the system's.
std::string problem_of_open(int error);

}  // namespace trireme
