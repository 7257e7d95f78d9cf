#pragma once
// The happens-before order on the streams of the mock device. For each piece of its memory it records the
// last uses. For each stream it records the progress of the other streams that it has waited for. An
// operation without a necessary wait is an error when it is issued. So a missing wait is found on any machine
// and at any speed. Uses vector clocks (Mattern, "Virtual Time and Global States of Distributed Systems",
// 1989). Thread-safe.

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace trireme::test {

class StreamOrder {
 public:
  /// The number of a device and of a stream.
  using Stream = std::pair<c10::DeviceIndex, c10::StreamId>;
  /// Number of operations of each stream.
  using Clock = std::map<Stream, std::uint64_t>;

  /// The next operation of a stream reads or writes the piece of memory that begins there. Throws c10::Error
  /// if a wait is missing.
  void read(const void* piece, const Stream& stream, const std::string& operation);
  void write(const void* piece, const Stream& stream, const std::string& operation);

  void allocated(const void* piece, const Stream& stream);
  /// The owner declares that this stream uses the piece, too. The piece is not reused before that use has
  /// ended.
  void lent(const void* piece, const Stream& stream);
  /// The piece is freed. Ends the process with a message if a stream that it was not lent to may still use it
  /// while its own stream reuses it.
  void given_back(const void* piece);

  /// The progress of a stream, and a stream that waits for such progress.
  Clock now(const Stream& stream);
  void wait(const Stream& stream, const Clock& passed);
  /// The host waits. All work that it issues from now on comes after `passed`.
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
  /// Records a use by the next operation of a stream, which must come after the last writer. Null: no piece
  /// of the device.
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
