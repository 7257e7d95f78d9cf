#pragma once
// Writes the evidence for trireme autopsy, in a process of its own. A process with a thread in a call to a
// disk that does not answer cannot end, not even by SIGKILL: the launcher does not make such calls. Not
// thread-safe.

#include <filesystem>
#include <functional>
#include <string>

#include "trireme/autopsy/evidence.h"
#include "trireme/base/file_descriptor.h"

namespace trireme::cli {

class EvidenceWriter {
 public:
  struct Options {
    std::filesystem::path file = {};
    std::string start_id = {};  ///< the run in the folder must belong to it, if it says so
    std::function<void(const std::string&)> complain = {};
  };

  explicit EvidenceWriter(Options options) : options_(std::move(options)) {}
  /// Leaves behind the process that waits for the disk: it writes as soon as the disk answers.
  ~EvidenceWriter() = default;
  EvidenceWriter(const EvidenceWriter&) = delete;
  EvidenceWriter& operator=(const EvidenceWriter&) = delete;

  /// Into a folder that exists. Waits a little: a reader of the failure may look for the file. Evidence of
  /// an earlier call that is not written by now is dropped.
  void write(const autopsy::Evidence& evidence);
  /// At the end: waits longer for the last one.
  void finish();

 private:
  void wait_for_it(double patience_s);
  void drop_earlier();

  const Options options_;
  int pid_ = 0;  ///< of the process that writes; 0: none
  FileDescriptor error_;
  std::string message_;
};

}  // namespace trireme::cli
