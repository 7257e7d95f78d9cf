#pragma once
// The current activity of a rank, readable by other processes even after its death: one page of shared memory
// that the launcher creates and passes on (environment variable TRIREME_STATUS_FD, a descriptor that survives
// exec). The rank writes; the launcher and the other ranks' messages read. A writer never blocks, never
// allocates and makes no system call. A torn read is detected and retried (sequence lock, after H.-J. Boehm,
// "Can seqlocks get along with programming language memory models?", MSPC 2012, section 4). Without a
// launcher the page is private memory. One writing thread at a time per text (action, operation, own work);
// any number of readers.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace trireme::telemetry {

class RankUsage;

/// A snapshot of a page.
struct Status {
  int rank = -1;
  std::uint64_t step = 0;
  std::string action;     ///< current action of the rank: "step 12: 0B3", "loading data"
  std::string operation;  ///< the last communication: "all_reduce #57 of group world, 6553600 f32, running"
  std::string own_work;   ///< see OwnWork: "saving a checkpoint"; empty: none
  std::string run;        ///< folder of the run, an absolute path; empty: none
  double updated_s = 0;   ///< when it last changed, on the monotonic clock of the host, to some milliseconds
};

class StatusPage {
 public:
  /// The page that the launcher handed down. Where there is none, a new one, which keeps its descriptor open:
  /// other processes of this user find both in /proc (open_of).
  static std::shared_ptr<StatusPage> from_environment();
  /// The page at a descriptor of another process, to be read: null where it is none, or not accessible.
  /// `identity`: the same for all descriptors of a page.
  static std::shared_ptr<const StatusPage> open_of(int pid, int descriptor, std::uint64_t* identity);
  /// How /proc/PID/fd shows a descriptor of a page.
  static constexpr std::string_view kLinkOfPages = "/memfd:trireme-status";
  /// A page of this process only (ranks as threads, tests).
  static std::shared_ptr<StatusPage> make_private();
  /// For the launcher: a new page and the descriptor to hand to one rank, which the caller closes. It is
  /// closed on exec unless the caller clears that flag. Leaves nothing in any file system. Throws
  /// InternalError.
  static std::shared_ptr<StatusPage> create(int* descriptor);

  ~StatusPage();
  StatusPage(const StatusPage&) = delete;
  StatusPage& operator=(const StatusPage&) = delete;

  /// Which rank writes the page, and which step it is in.
  void set_rank(int rank);
  void set_step(std::uint64_t step);
  /// Truncated to the space of the page (about 200 bytes).
  void set_action(std::string_view action);
  void set_operation(std::string_view operation);
  /// Use OwnWork, which ends it.
  void set_own_work(std::string_view work);
  /// Cut to 511 bytes.
  void set_run(std::string_view folder);

  /// Of an elastic job, written by its launcher: the world of that generation is wanted, and the rank is to
  /// leave the one before at its next good moment. 0: none.
  void ask_for_generation(int generation);
  int asked_generation() const;

  /// Use of the rank's time and resources.
  RankUsage& usage();
  const RankUsage& usage() const;

  /// A text whose writer was killed in the middle of it comes as it was left, after a fifth of a second.
  Status read() const;

 private:
  struct Page;
  explicit StatusPage(Page* page) : page_(page) {}
  static std::shared_ptr<StatusPage> make_visible();
  static std::shared_ptr<StatusPage> map(int descriptor, int protection);
  Page* page_;
  int kept_descriptor_ = -1;
};

/// While it lives, the rank does local work that may take long and need no processor: saving, loading,
/// waiting for a disk. Ranks that wait for this rank meanwhile wait longer, and can name the reason. Works
/// may nest: the innermost is shown.
class OwnWork {
 public:
  OwnWork(StatusPage& page, std::string_view what);
  ~OwnWork();
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;

 private:
  StatusPage& page_;
  const std::string around_;  ///< the work that this one is part of
};

}  // namespace trireme::telemetry
