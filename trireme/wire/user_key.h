#pragma once
// The key by which processes of one user authenticate each other on loopback TCP. It is used without other
// proofs, where the kernel cannot identify the user of a peer. Thread-safe.

#include "trireme/wire/secret.h"

namespace trireme::wire {

/// The content of the file "user.key": 256 bits, made by the first process that needs it. Its folder is the
/// first of these that this user owns or may make:
/// - $XDG_STATE_HOME/trireme
/// - $HOME/.local/state/trireme, and the same in the home folder of the user's entry in passwd
/// - /tmp/trireme-UID
/// Folder and file belong to the effective user, are closed to group and others and are no symbolic links.
/// Throws InvalidArgument, with the remedy, where that does not hold. Costs some system calls. Processes that
/// run long read it again for each peer, so that a file that was removed and made again is accepted.
Secret user_key();

}  // namespace trireme::wire
