#pragma once
// The folder of a run's checkpoints: names, and how checkpoints are added, replaced, moved aside and removed.
// One writer at a time, the first of those that write a checkpoint together. Stateless.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::checkpoint {

/// "step-00000120".
std::string name_of(std::int64_t step);
/// The step in a folder's name; empty when it is not the name of a checkpoint.
std::optional<std::int64_t> step_of(const std::filesystem::path& folder);
/// Where the parts of a checkpoint are written: FOLDER/.writing-step-00000120.ATTEMPT.
std::filesystem::path temporary_of(const std::filesystem::path& folder, std::int64_t step,
                                   const std::string& attempt);
/// Removes the files of earlier writers of Trireme: temporary folders of other attempts than those that begin
/// with `prefix`.
void remove_leftovers(const std::filesystem::path& folder, const std::string& prefix);
/// Whether there is a checkpoint at `place`, to be replaced. A damaged one is moved aside. Throws DataError
/// where the path is not a checkpoint of Trireme, or not known to be.
bool holds_checkpoint(const std::filesystem::path& place);
/// Renames a damaged checkpoint to NAME.damaged-1, or the next free number, so that it is never taken for one
/// and never removed. Returns the new path.
std::filesystem::path move_aside(const std::filesystem::path& checkpoint);
/// Renames `from` to `to`. An existing checkpoint is exchanged with it in one step, where the file system
/// supports that, and is removed afterwards.
void put_in_place(const std::filesystem::path& from, const std::filesystem::path& to);
/// Removes all but the newest `keep` (0: none of them) and, for any `keep`, those of later steps than the one
/// just saved: they were made by a run that has since gone back after them, and would count as the newest.
void remove_outdated(const std::filesystem::path& folder, std::int64_t saved_step, int keep);

}  // namespace trireme::checkpoint
