#pragma once
// The functions of the rows of schedule_table.cpp, each in a file of its own in generators/, with its source.
// Their options have been checked against the row; chunks are set. Pure and thread-safe.

#include "trireme/schedule/schedule_table.h"

namespace trireme::schedule {

Program naive(const ScheduleOptions& options);
Program gpipe(const ScheduleOptions& options);
Program one_f_one_b(const ScheduleOptions& options);
Program interleaved_one_f_one_b(const ScheduleOptions& options);
Program looped_bfs(const ScheduleOptions& options);
Program zero_bubble_h1(const ScheduleOptions& options);
Program zero_bubble_h2(const ScheduleOptions& options);
Program zero_bubble_1p(const ScheduleOptions& options);
Program zero_bubble_2p(const ScheduleOptions& options);
Program interleaved_zero_bubble(const ScheduleOptions& options);
Program zero_bubble_v(const ScheduleOptions& options);
Program v_half(const ScheduleOptions& options);
Program v_min(const ScheduleOptions& options);
Program dualpipe(const ScheduleOptions& options);
Program dualpipe_v(const ScheduleOptions& options);
Program pipedream(const ScheduleOptions& options);
Program pipedream_2bw(const ScheduleOptions& options);
Program one_f_one_b_round_robin(const ScheduleOptions& options);

}  // namespace trireme::schedule
