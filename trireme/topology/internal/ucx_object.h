#pragma once
// The functions of the optional UCX object libtrireme_ucx.so, and its search. The object is next to the
// program or in its ../lib, or at the path of TRIREME_UCX_OBJECT; it is loaded once, when comm.network needs
// it, and never unloaded.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::topology {

/// A worker of UCX with an endpoint for each peer: messages with tags, under way until they are over. Belongs
/// to one thread at a time. All throw CommError with UCX's reason.
class UcxWorker {
 public:
  using Request = void*;  ///< null: it is over

  /// As close().
  virtual ~UcxWorker() = default;

  virtual std::vector<std::byte> address() const = 0;
  virtual void connect(int peer, std::span<const std::byte> address) = 0;
  /// The memory stays as it is until the request is over. Messages of one tag arrive in the order in which
  /// one peer sends them; a message longer than its receive is an error.
  virtual Request send(int peer, std::uint64_t tag, std::span<const std::byte> bytes) = 0;
  virtual Request receive(std::uint64_t tag, std::span<std::byte> bytes) = 0;
  /// The request that is over is gone, and null; also where it has failed, and this throws.
  virtual bool is_over(Request& request) = 0;
  /// The tag of the first message without a receive, of those whose tag has the bits of `tag` where `mask`
  /// has any.
  virtual std::optional<std::uint64_t> first_left(std::uint64_t tag, std::uint64_t mask) = 0;

  /// Whether anything has moved.
  virtual bool progress() = 0;
  /// False: progress first. True: fd() can be read when something is to be done.
  virtual bool arm() = 0;
  virtual int fd() const = 0;

  /// Ends everything: no memory of a request is touched any more, and no other call may follow.
  virtual void close() = 0;
};

}  // namespace trireme::topology

extern "C" {
/// Without peers; the caller owns it.
trireme::topology::UcxWorker* trireme_ucx_make_worker(int peers);
}

namespace trireme::topology {

struct UcxObject {
  std::string missing_because;  ///< empty when the functions are there
  decltype(&trireme_ucx_make_worker) make_worker = nullptr;
};

const UcxObject& ucx_object();

/// For the tests of a clean failure.
UcxObject load_ucx_object(const std::string& path);

}  // namespace trireme::topology
