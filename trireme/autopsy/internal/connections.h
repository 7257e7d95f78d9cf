#pragma once
// TCP connections of a process, as /proc/PID/net/tcp lists them.

#include <string>
#include <vector>

#include "trireme/autopsy/evidence.h"

namespace trireme::autopsy {

/// "10.0.0.2:443" of the peer of the socket with this inode; empty where it is no TCP connection.
std::string peer_of_socket(int pid, unsigned long inode);

/// Peers of the process that have not confirmed bytes after several transmissions.
std::vector<SilentPeer> silent_peers(int pid);

}  // namespace trireme::autopsy
