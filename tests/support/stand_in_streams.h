#pragma once
// What happens before what on the streams of the stand-in device: of each piece of its memory, who has used
// it last, and of each stream, up to where it has waited for the others. An operation that comes after
// nothing which it would need to come after is an error when it is issued, on any machine and at any speed:
// a missing wait need not be lucky to be found. Clocks of vectors (Mattern, "Virtual Time and Global States
// of Distributed Systems", 1989). Thread-safe.

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace trireme::test {

class StreamOrder {
 public:
  /// A device's number and a stream's.
  using Stream = std::pair<c10::DeviceIndex, c10::StreamId>;
  /// Operations of each stream.
  using Clock = std::map<Stream, std::uint64_t>;

  /// The next operation of a stream reads, or writes, the piece of memory that begins there. Throws
  /// c10::Error.
  void read(const void* piece, const Stream& stream, const std::string& operation);
  void write(const void* piece, const Stream& stream, const std::string& operation);

  void allocated(const void* piece, const Stream& stream);
  /// Its owner says that this stream uses it, too: it is not given out again before that has.
  void lent(const void* piece, const Stream& stream);
  /// Nobody uses it any more. Ends the process, with the reason, where a stream that it was not lent to may
  /// still use it while its own gets it again.
  void given_back(const void* piece);

  /// Up to where a stream has come, and a stream that comes after that.
  Clock now(const Stream& stream);
  void wait(const Stream& stream, const Clock& passed);
  /// The host waits: whatever it issues from now on comes after that.
  void host_waits(const Clock& passed);
  void host_waits_for_all();

 private:
  struct Piece {
    Stream owner;
    Stream writer;
    std::uint64_t written = 0;
    Clock readers = {};
    std::map<Stream, bool> lent = {};
  };
  /// By the next operation of a stream, which comes after who has written it; null: no piece of the device.
  Piece* use(const void* piece, const Stream& stream, const std::string& operation);
  /// The clock of the next operation of a stream.
  Clock& next(const Stream& stream);
  static void merge(Clock& into, const Clock& passed);
  static void check(bool comes_behind, const Stream& stream, const Stream& other,
                    const std::string& operation, const char* did);

  std::mutex mutex_;
  std::map<Stream, Clock> clocks_;
  Clock host_;
  std::map<const void*, Piece> pieces_;
};

}  // namespace trireme::test
