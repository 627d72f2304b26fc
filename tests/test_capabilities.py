"""Every capability that Hookline promises names the test that shows it, so that none can get lost unnoticed.

A row is a capability and one test: ``folder/file.py::test_name``, below ``tests/``.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from types import ModuleType

from hookline import callbacks, sinks
from hookline.events import Callback

TESTS = Path(__file__).parent

SYSTEM = {
    "fit and predict": "loop/test_task.py::test_the_three_methods",
    "run.entry_point": "loop/test_task.py::test_each_entry_point_has_its_name_in_every_hook",
    "callbacks for one call": "loop/test_second_fit.py::test_other_loaders_and_callbacks_are_the_same_run",
    "evaluate": "loop/test_metrics.py::test_evaluate_gives_the_metrics_of_this_evaluation_only",
    "every entry point fails in order": "loop/test_stopping.py::test_an_exception_in_another_entry_point",
    "train without evaluation": "loop/test_task.py::test_train_is_fit_without_evaluation",
    "a test loader at the end of a fit": "loop/test_sequences.py::test_the_test_loader_is_evaluated_once_between_train_end_and_fit_end",
    "answers inside any hook change nothing": "loop/test_evaluation_is_quiet.py::test_answers_in_any_hook_leave_the_weights_bitwise_the_same",
    "answers are kept until the weights change": "loop/test_evaluation_is_quiet.py::test_answers_are_kept_until_the_weights_change",
    "Task with any subset of its methods": "loop/test_task.py::test_only_the_methods_that_are_used_are_needed",
    "SupervisedTask to subclass with super()": "loop/test_task.py::test_a_subclass_with_super",
    "a plain model": "loop/test_task.py::test_what_a_hook_sees_of_a_task_and_of_a_model",
    "a custom loop": "loop/test_own_loop.py::test_the_own_loop_sends_what_the_trainer_sends_and_moves_the_weights_alike",
    "the hooks of a task run first": "loop/test_task.py::test_the_hooks_of_a_task_run_first",
    "on_event": "events/test_dispatch.py::test_on_event_sees_every_event_by_name",
    "hl.on": "callbacks/debug/test_lambda_callback.py::test_a_function_with_hl_on_is_called_at_its_event_as_often_as_it_says",
    "custom events": "events/test_dispatch.py::test_a_custom_event_hands_its_payload_on_as_keywords",
    "a callback in a separate package": "run/test_callback_package.py::test_the_best_weights_are_saved_and_loaded_and_training_stops",
    "a callback in a separate package on two ranks": "distributed/test_callback_package.py::test_a_callback_of_another_package_on_two_ranks",
    "completion and text on hover for run": "docs/test_editor.py::test_an_editor_completes_and_explains_every_name_of_run",
    "StopTraining": "loop/test_stopping.py::test_stop_training_in_a_hook_is_the_same_vote",
    "run.stop(reason)": "loop/test_stopping.py::test_run_stop_in_a_hook_ends_the_run_in_order",
    "on_stop": "loop/test_stopping.py::test_stop_is_announced_once_with_its_reason",
    "callback state": "events/test_callback.py::test_the_state_is_the_attributes_that_are_named",
    "identity of a callback": "events/test_callback.py::test_identity_is_the_class_and_its_plain_constructor_arguments",
    "Callback.reset_state": "loop/test_reuse.py::test_another_run_starts_with_a_new_state",
    "state_key": "loop/test_resume.py::test_a_callback_with_its_own_state_key_keeps_its_state_when_its_arguments_change",
    "callback state in checkpoints": "loop/test_resume.py::test_modules_optimizers_and_generators_that_a_callback_holds_go_on",
    "two instances of one class": "test_seed_examples.py::test_two_counters_get_their_own_state_back",
    "modules that a callback holds": "run/test_callbacks.py::test_a_module_that_an_added_callback_holds_goes_where_the_model_is",
    "ranks": "events/test_dispatch.py::test_a_callback_runs_on_its_ranks_and_on_no_other",
    "callbacks added in a hook": "run/test_callbacks.py::test_one_that_is_added_is_set_up_at_once_and_hears_the_next_event",
    "callbacks removed in a hook": "run/test_callbacks.py::test_one_that_is_removed_undoes_what_it_did_and_hears_nothing_more",
    "loaders replaced in a hook": "run/test_writes.py::test_a_training_loader_that_is_replaced_counts_from_the_next_epoch",
    "max_duration changed in a hook": "run/test_run.py::test_max_duration_can_be_changed_from_a_hook",
    "learning rate changed in a hook": "run/test_writes.py::test_a_learning_rate_that_is_changed_counts_from_the_next_step",
    "config changed in a hook": "run/test_writes.py::test_a_hyper_parameter_that_is_changed_is_what_later_hooks_read",
    "the fields of run": "run/test_run.py::test_the_fields_are_what_the_user_gave",
    "name, project and config of a run": "loop/test_run_record.py::test_what_was_run_is_written_down",
    "run.messages": "run/test_run.py::test_messages_of_an_epoch_are_gone_when_the_next_one_begins",
    "run.history": "run/test_history.py::test_a_metric_is_a_list_of_values_and_a_list_of_steps",
    "arrays as metrics": "loop/test_metrics.py::test_small_arrays_are_kept_as_arrays",
    "hookline replay": "replaying/test_replay.py::test_twenty_steps_are_equal_in_every_bit_and_the_run_is_untouched",
    "replay on several ranks": "replaying/test_replay.py::test_a_replay_on_two_ranks",
    "the sample behind a NaN": "replaying/test_replay.py::test_a_bad_sample_is_found_with_one_command",
    "callbacks attached to a past run": "replaying/test_replay.py::test_callbacks_join_at_the_first_step_that_was_asked_for",
    "what differs in a script that is not repeatable": "replaying/test_replay.py::test_a_script_that_is_not_repeatable_is_told_what_differs_first",
    "steps.bin": "loop/test_step_record.py::test_each_step_has_a_row_with_its_loss",
    "hookline stop, save, eval and set": "distributed/test_control.py::test_each_command_works_at_any_moment",
    "the leaderboard in the browser": "report/test_browser_watch.py::test_a_thousand_runs_are_sorted_and_filtered_with_the_keyboard",
    "hookline ls": "report/test_leaderboard.py::test_runs_are_sorted_by_any_metric_or_setting_and_those_without_it_are_last",
    "hookline watch --control": "report/test_browser_control.py::test_the_buttons_work_with_the_keyboard",
    "settings of callbacks": "loop/test_control.py::test_the_patience_of_a_callback_changes",
    "settings after a resume": "loop/test_control.py::test_a_resume_repeats_settings_bitwise",
    "run.log": "loop/test_metrics.py::test_a_name_without_a_slash_gets_the_stage",
    "torchmetrics objects": "loop/test_metric_objects.py::test_a_resumed_run_has_the_very_rows_of_one_that_was_not_left",
    "log_image": "loop/test_media.py::test_an_image_is_a_row_and_a_file",
    "log_text": "loop/test_media.py::test_a_text_is_a_row_without_secrets",
    "log_table": "loop/test_media.py::test_a_table_is_taken_as_people_have_it",
    "log_histogram": "loop/test_media.py::test_a_histogram_counts_every_value_once",
    "log_file": "loop/test_media.py::test_a_file_is_copied_into_the_folder",
    "log_figure": "loop/test_media.py::test_a_figure_becomes_a_picture",
    "on_exception": "loop/test_stopping.py::test_an_exception_after_training_reaches_on_exception_too",
    "on_interrupt": "loop/test_stopping.py::test_ctrl_c_in_a_hook_finishes_the_step_and_returns_a_result",
    "gradients in an evaluation hook": "loop/test_evaluation_is_quiet.py::test_backward_inside_an_evaluation_leaves_no_gradient",
    "sanity check": "loop/test_sequences.py::test_a_second_fit_goes_on_without_a_second_sanity_check",
    "the sanity check changes nothing": "loop/test_evaluation_is_quiet.py::test_the_sanity_check_leaves_the_weights_bitwise_the_same",
    "plug-ins": "callbacks/test_plugins.py::test_import_hookline_is_all_that_is_needed_to_have_them",
    "Duration": "progress/test_duration.py::test_every_documented_spelling_is_read",
    "Clock": "progress/test_clock.py::test_elapsed_gives_the_total_in_each_unit",
    "the guide to writing callbacks": "docs/test_pages.py::test_the_guide_names_every_field_and_verb_of_run",
}

EVENTS = {
    "every event is sent": "loop/test_foreign_hooks_fire.py::test_every_event_of_the_table_is_sent",
    "every hook of the five systems is mapped": "events/test_foreign.py::test_a_user_who_brings_a_hook_from_the_seed_documents_is_told_our_name",
    "the event of each foreign hook is sent": "loop/test_foreign_hooks_fire.py::test_the_event_of_each_foreign_hook_is_sent",
    "the order of a step": "loop/test_sequences.py::test_the_step_of_the_design_with_a_scheduler_an_evaluation_and_accumulation",
    "forward events": "loop/test_task.py::test_forward_events_are_sent_in_every_stage",
    "checkpoint events": "loop/test_saving.py::test_a_step_then_an_evaluation_then_a_save_in_the_order_of_the_design",
    "scopes": "loop/test_scopes_in_runs.py::test_scopes_are_entered_before_the_start_hooks_and_left_after_the_end_hooks",
}

CALLBACKS = {
    "EarlyStopping": "callbacks/stopping/test_early_stopping.py::test_patience_is_a_number_of_decisions_without_improvement",
    "EarlyStopping(patience='2ep')": "callbacks/stopping/test_early_stopping.py::test_patience_may_be_a_duration_since_the_best",
    "EarlyStopping(stopping_threshold)": "callbacks/stopping/test_early_stopping.py::test_stopping_threshold",
    "EarlyStopping(divergence_threshold)": "callbacks/stopping/test_early_stopping.py::test_divergence_threshold",
    "EarlyStopping(check_finite)": "callbacks/stopping/test_early_stopping.py::test_a_value_that_is_not_finite_stops_at_once",
    "EarlyStopping(restore_best)": "callbacks/stopping/test_early_stopping.py::test_restore_best_puts_the_weights_of_the_best_decision_back_bitwise",
    "StopAtThreshold": "callbacks/stopping/test_stop_at_threshold.py::test_when_it_stops",
    "StopOnNaN": "callbacks/stopping/test_stop_on_nan.py::test_weights_optimizer_and_batch_norm_stay_those_of_the_last_finite_step",
    "StopOnNaN for gradients": "callbacks/stopping/test_stop_on_nan.py::test_a_finite_loss_with_gradients_that_are_not_stops_before_the_update_and_names_them",
    "StopOnNaN for a metric": "callbacks/stopping/test_stop_on_nan.py::test_a_metric_of_the_evaluation_stops_after_it",
    "StopOnNaN on all ranks": "distributed/test_spikes.py::test_a_loss_that_is_not_finite_on_one_rank_stops_all_at_the_last_finite_step",
    "SpikeGuard": "callbacks/stopping/test_spike_guard.py::test_twenty_spikes_leave_weights_bitwise_as_if_their_batches_had_not_been_there",
    "SpikeGuard with a rollback": "callbacks/stopping/test_spike_guard.py::test_a_rollback_takes_back_the_steps_since_the_snapshot_and_goes_on_with_the_next_batch",
    "SpikeGuard(max_spikes)": "callbacks/stopping/test_spike_guard.py::test_more_than_max_spikes_stop_the_run_with_a_reason_that_names_the_last",
    "SpikeGuard(keep_batches)": "callbacks/stopping/test_spike_guard.py::test_the_batch_and_what_it_was_are_kept_in_the_folder",
    "StopOnConstantPredictions": "callbacks/stopping/test_stop_on_constant_predictions.py::test_a_dead_model_is_found_and_a_live_one_is_not",
    "StopOnConstantPredictions(action='warn')": "callbacks/stopping/test_stop_on_constant_predictions.py::test_warn_says_it_and_the_run_goes_on",
    "TimeLimit": "callbacks/stopping/test_time_limit.py::test_it_stops_at_the_end_of_the_first_step_after_the_time",
    "StopOnSignal": "callbacks/stopping/test_stop_on_signal.py::test_each_signal_that_was_named_saves_and_leaves_with_its_own_exit_code",
    "StopOnSignal(requeue)": "callbacks/stopping/test_stop_on_signal.py::test_requeue_is_called_once_when_the_checkpoint_is_on_the_disk",
    "StopOnSignal in Slurm": "callbacks/stopping/test_stop_on_signal.py::test_in_slurm_a_job_is_put_back_by_its_number_and_one_of_an_array_by_its_task",
    "Checkpointer": "callbacks/saving/test_checkpointer.py::test_it_saves_when_it_was_told_to",
    "Checkpointer keeps last, best and every": "callbacks/saving/test_checkpointer.py::test_what_any_rule_keeps_is_kept",
    "Checkpointer(at_end)": "callbacks/saving/test_checkpointer.py::test_without_at_end_nothing_is_saved_behind_the_last_one_that_was_due",
    "Checkpointer(on_exception)": "callbacks/saving/test_checkpointer.py::test_after_an_error_in_a_step_the_checkpoint_is_inexact_and_auto_passes_it_over",
    "Checkpointer in the background": "callbacks/saving/test_saving_behind_training.py::test_training_goes_on_while_a_save_is_written",
    "SaveBest": "callbacks/saving/test_save_best.py::test_the_file_and_the_model_have_the_weights_of_the_best_evaluation",
    "SaveAtEnd": "callbacks/saving/test_save_at_end.py::test_weights_predictions_labels_metrics_and_settings_of_the_final_model_are_there",
    "SaveAtEnd(source)": "callbacks/saving/test_save_at_end.py::test_the_script_is_kept_as_it_was_when_the_run_began",
    "LoadWeights": "callbacks/saving/test_load_weights.py::test_each_kind_of_file_is_what_training_begins_with",
    "LoadWeights from Lightning": "callbacks/saving/test_load_weights.py::test_a_lightning_checkpoint_is_read_without_its_prefix",
    "LoadWeights runs no code": "callbacks/saving/test_load_weights.py::test_a_file_that_would_run_code_is_refused_and_runs_none",
    "PredictionWriter": "callbacks/saving/test_prediction_writer.py::test_an_epoch_is_one_file_with_every_sample_in_order",
    "PredictionWriter per batch": "callbacks/saving/test_prediction_writer.py::test_parts_hold_every_sample_once_and_their_names_are_in_order",
    "PredictionWriter with a custom writer": "callbacks/saving/test_prediction_writer.py::test_an_own_writer_gets_the_columns_and_its_file_appears_when_it_is_whole",
    "ExportModel": "callbacks/saving/test_export_model.py::test_the_file_computes_what_the_model_does_for_batches_of_any_size",
    "ExportModel checks the output": "callbacks/saving/test_export_model.py::test_a_trace_that_gives_something_else_is_found_by_the_check",
    "Upload": "callbacks/saving/test_upload.py::test_a_run_is_whole_on_s3_with_its_report_and_its_last_words",
    "LRSchedule": "callbacks/schedule/test_lr_schedule.py::test_a_cosine_follows_the_formula_and_stays_above_its_end",
    "LRSchedule by plateau": "callbacks/schedule/test_lr_schedule_plateau.py::test_a_plateau_lowers_the_rate_when_the_metric_stands_still",
    "LRSchedule of torch": "callbacks/schedule/test_lr_schedule.py::test_a_scheduler_of_torch_gets_its_length",
    "LRSchedule by epoch": "callbacks/schedule/test_lr_schedule.py::test_by_epoch_it_moves_at_the_edge_of_each",
    "LRSchedule fills in the number of steps": "callbacks/schedule/test_lr_schedule.py::test_the_number_of_steps_is_filled_in",
    "LRSchedule with a warm-up": "callbacks/schedule/test_lr_schedule.py::test_a_warm_up_is_a_duration_or_a_share",
    "LRSchedule('constant')": "callbacks/schedule/test_lr_schedule.py::test_a_constant_rate_is_reached_after_the_warm_up",
    "LRSchedule('linear')": "callbacks/schedule/test_lr_schedule.py::test_a_linear_fall_ends_right_after_the_last_step",
    "LRSchedule with hard restarts": "callbacks/schedule/test_lr_schedule.py::test_hard_restarts_begin_again_at_the_top",
    "LRSchedule with one cycle": "callbacks/schedule/test_lr_schedule.py::test_one_cycle_is_that_of_torch_with_its_momentum",
    "LRSchedule('wsd')": "callbacks/schedule/test_lr_schedule.py::test_wsd_warms_up_stays_and_decays_over_its_last_part",
    "AccumulationSchedule": "callbacks/schedule/test_accumulation_schedule.py::test_each_epoch_has_its_own_number_of_batches_a_step",
    "Finetuning": "callbacks/schedule/test_finetuning.py::test_what_is_unfrozen_is_trained_at_its_own_rate",
    "BackboneFinetuning": "callbacks/schedule/test_backbone_finetuning.py::test_its_rate_doubles_until_it_is_that_of_the_head",
    "Freeze": "callbacks/schedule/test_freeze.py::test_a_frozen_layer_does_not_move_by_gradient_decay_or_statistics",
    "LRFinder": "callbacks/schedule/test_lr_finder.py::test_training_is_bitwise_what_it_is_without_it",
    "LRFinder draws the curve": "callbacks/schedule/test_lr_finder.py::test_the_curve_is_drawn_and_logged",
    "BatchSizeFinder": "callbacks/schedule/test_batch_size_finder.py::test_the_search_is_right_for_every_limit",
    "BatchSizeFinder restores everything": "callbacks/schedule/test_batch_size_finder.py::test_training_is_bitwise_what_it_is_without_it",
    "BatchSizeFinder draws the curve": "callbacks/schedule/test_batch_size_finder.py::test_what_it_found_is_drawn_and_logged",
    "EMA": "callbacks/weights/test_ema.py::test_the_average_is_that_of_torch_bitwise",
    "SWA": "callbacks/weights/test_swa.py::test_the_average_is_that_of_torch",
    "Pruning": "callbacks/weights/test_pruning.py::test_the_run_is_that_of_torchs_own_pruning_bitwise",
    "QuantizationAwareTraining": "callbacks/weights/test_quantization_aware_training.py::test_training_rounds_the_weights_and_moves_the_ones_behind_them",
    "GradientClip by norm": "callbacks/gradients/test_gradient_clip.py::test_a_run_clipped_by_norm_is_bitwise_a_plain_loop",
    "GradientClip by value": "callbacks/gradients/test_gradient_clip.py::test_a_run_clipped_by_value_is_bitwise_a_plain_loop",
    "GradientMonitor": "callbacks/gradients/test_gradient_monitor.py::test_norms_of_gradients_weights_and_updates_are_those_of_a_plain_loop",
    "GradientPlot": "callbacks/gradients/test_gradient_plot.py::test_each_layer_has_a_panel_with_its_name",
    "Metrics": "callbacks/evaluation/test_metrics.py::test_objects_are_computed_over_the_whole_evaluation",
    "Metrics of functions": "callbacks/evaluation/test_metrics.py::test_functions_are_averaged_over_samples_and_not_over_batches",
    "Metrics of training": "callbacks/evaluation/test_metrics.py::test_training_is_measured_when_it_is_asked_for",
    "Metrics over ranks": "distributed/test_metrics.py::test_the_metrics_callback_gives_the_values_of_one_process_on_all_the_data",
    "PrintMetrics": "callbacks/evaluation/test_print_metrics.py::test_an_epoch_is_one_line_with_its_evaluation_in_it",
    "DerivedMetric": "callbacks/evaluation/test_derived_metric.py::test_after_an_evaluation_it_has_the_step_of_what_it_is_made_of",
    "RenameMetric": "callbacks/evaluation/test_rename_metric.py::test_history_rows_files_and_metrics_know_only_the_new_name",
    "HistoryPlot": "callbacks/evaluation/test_history_plot.py::test_a_run_has_its_picture_in_each_format_and_logs_it_once",
    "ImageSamples": "callbacks/evaluation/test_image_samples.py::test_each_picture_has_its_class_and_says_whether_it_is_right",
    "ImageSamples of masks": "callbacks/evaluation/test_image_samples.py::test_masks_are_colours_over_the_pictures_true_and_predicted",
    "ProgressBar in a terminal": "callbacks/watch/test_progress_everywhere.py::test_a_terminal_shows_bars_with_metrics_and_prints_above_them",
    "ProgressBar in a notebook": "callbacks/watch/progress/test_notebook_display.py::test_a_frame_says_what_a_terminal_would_say",
    "ProgressBar in a file": "callbacks/watch/test_progress_bar.py::test_a_log_gets_a_line_for_the_first_step_and_for_each_epoch",
    "ProgressBar(style='tqdm')": "callbacks/watch/progress/test_tqdm_display.py::test_each_bar_is_a_line_of_tqdm_and_the_metrics_are_behind_the_first",
    "ProgressDisplay": "callbacks/watch/test_progress_bar.py::test_an_own_display_is_started_updated_and_closed",
    "ModelSummary": "callbacks/watch/test_model_summary.py::test_every_column_is_right_for_a_model_that_can_be_counted_by_hand",
    "ModelSummary of FLOPs": "callbacks/watch/test_model_summary.py::test_the_operations_are_those_that_torch_counts_on_the_real_model",
    "LRMonitor": "callbacks/watch/test_lr_monitor.py::test_a_row_is_the_rate_that_its_step_was_made_with",
    "SpeedMonitor": "callbacks/watch/test_speed_monitor.py::test_speeds_are_those_of_training_without_evaluations_and_saves",
    "SpeedMonitor of tokens": "callbacks/watch/test_speed_monitor.py::test_tokens_are_counted_where_the_task_counts_them",
    "SpeedMonitor(peak)": "callbacks/watch/test_speed_monitor.py::test_how_much_of_the_peak_is_used",
    "SpeedMonitor(data_wait)": "callbacks/watch/test_speed_monitor.py::test_the_wait_for_data_is_a_share_of_the_time_of_training",
    "TimeRemaining": "callbacks/watch/test_time_remaining.py::test_it_is_right_in_every_unit",
    "MemoryMonitor": "callbacks/watch/test_memory_monitor.py::test_it_is_what_the_system_says_of_the_process",
    "DeviceMonitor": "callbacks/watch/test_device_monitor.py::test_rates_are_those_of_the_interval",
    "DeviceMonitor of the network": "callbacks/watch/test_device_monitor.py::test_what_goes_over_the_network_is_seen",
    "DeviceMonitor of a GPU": "callbacks/watch/test_device_monitor.py::test_a_gpu_says_how_busy_it_is",
    "DeviceMonitor of XLA": "callbacks/watch/test_device_monitor.py::test_xla_says_how_full_its_memory_is",
    "ParameterMonitor": "callbacks/watch/test_parameter_monitor.py::test_the_numbers_are_those_that_numpy_computes",
    "ActivationMonitor": "callbacks/watch/test_activation_monitor.py::test_the_statistics_are_those_of_numpy_and_scipy",
    "SlowRankMonitor": "callbacks/watch/test_slow_rank_monitor.py::test_of_two_ranks_the_slow_one_is_compared_with_the_fast_one",
    "SlowRankMonitor over ranks": "distributed/test_slow_rank_monitor.py::test_the_slow_rank_is_named_and_so_is_what_it_is_slow_in",
    "MLPerfLog": "callbacks/watch/test_mlperf_log.py::test_the_checker_of_mlperf_takes_the_log_and_misses_what_is_cut_out_of_it",
    "Notify": "callbacks/watch/test_notify.py::test_a_webhook_gets_what_happened_with_the_numbers_of_the_run",
    "Notify by mail": "callbacks/watch/test_notify.py::test_a_mail_has_the_metrics_and_the_plots_of_the_run",
    "Notify(when)": "callbacks/watch/test_notify.py::test_an_alert_is_told_when_it_begins_to_hold_and_again_only_after_it_did_not",
    "LogFile": "callbacks/watch/test_log_file.py::test_the_log_of_a_run_reads_like_its_console",
    "TorchProfiler": "callbacks/debug/test_torch_profiler.py::test_the_steps_of_the_schedule_are_in_the_trace_and_no_others",
    "TorchProfiler with a given profile": "callbacks/debug/test_torch_profiler.py::test_its_own_handler_keeps_the_trace_and_is_there_afterwards",
    "TorchProfiler in evaluate, test and predict": "callbacks/debug/test_torch_profiler.py::test_evaluate_test_and_predict_are_recorded_by_themselves",
    "MemorySnapshot": "callbacks/debug/test_memory_snapshot.py::test_a_leak_of_tensors_is_counted_by_shape",
    "OOMReport": "callbacks/debug/test_oom_report.py::test_the_report_says_where_it_was_and_why",
    "GarbageCollector": "callbacks/debug/test_garbage_collector.py::test_in_training_only_the_chosen_steps_collect",
    "LimitBatches": "callbacks/debug/test_limit_batches.py::test_each_stage_takes_so_many_batches_and_they_are_the_first",
    "OverfitBatches": "callbacks/debug/test_overfit_batches.py::test_each_epoch_has_the_batches_that_a_plain_run_begins_with",
    "DryRun": "callbacks/debug/test_dry_run.py::test_every_stage_has_so_many_batches_in_one_epoch",
    "LambdaCallback": "callbacks/debug/test_lambda_callback.py::test_each_function_is_called_with_run_at_its_event",
}

SINKS = {
    "JSONL": "sinks/test_jsonl.py::test_rows_of_every_kind_are_written_and_read",
    "metrics.jsonl is always written": "loop/test_metrics.py::test_the_file_is_complete_and_equal_to_the_history",
    "CSV": "sinks/test_csv_file.py::test_a_value_comes_back_bit_by_bit",
    "Console": "sinks/test_console.py::test_the_metrics_of_a_step_are_one_line_and_those_of_an_evaluation_another",
    "Memory": "sinks/test_memory.py::test_all_records_are_kept_and_metrics_are_found_by_name",
    "TensorBoard": "sinks/test_tensorboard.py::test_numbers_are_scalars_and_odd_numbers_stay_what_they_are",
    "TensorBoard's images": "sinks/test_tensorboard.py::test_a_picture_is_the_same_bytes_and_its_caption_is_a_text",
    "TensorBoard's text": "sinks/test_tensorboard.py::test_texts_files_and_what_happened_are_texts",
    "TensorBoard's histograms": "sinks/test_tensorboard.py::test_a_histogram_has_its_own_edges_and_counts_and_says_what_is_in_none_of_them",
    "TensorBoard's hyper-parameters": "sinks/test_tensorboard.py::test_the_settings_are_in_the_same_run_with_what_it_measured",
    "TensorBoard's graph": "sinks/test_tensorboard_graph.py::test_the_graph_has_the_layers_of_the_model",
    "WandB": "sinks/test_wandb.py::test_every_kind_of_row_is_read_back",
    "WandB offline": "sinks/test_wandb.py::test_offline_nothing_is_sent_and_nothing_stays_behind",
    "MLflow": "sinks/test_mlflow.py::test_every_kind_of_row_is_read_back_from_a_local_folder",
    "MLflow with a server": "sinks/test_mlflow.py::test_a_tracking_server_gets_it_all",
    "any object with log(dict, step)": "sinks/test_log_object.py::test_log_is_called_once_a_step_however_it_takes_the_step",
    "a hint for logger=": "loop/test_first_mistakes.py::test_a_logger_is_a_sink_here",
}

PROMISES = {
    "1 exact resume": "loop/test_resume_matrix.py::test_a_run_that_was_left_and_resumed_is_the_one_that_never_stopped",
    "2 an optional callback cannot kill a run": "loop/test_optional.py::test_twenty_that_fail_in_every_hook_leave_the_weights_bitwise_the_same",
    "2 a callback that blocks is named": "loop/test_blocked_hooks.py::test_a_hook_that_blocks_is_named_with_its_line",
    "3 no deadlock": "distributed/test_failures.py::test_an_error_on_one_rank_ends_all_and_is_named",
    "4 the checkpoint folder is always valid": "checkpoint/test_kill_at_each_operation.py::test_the_old_or_the_new_checkpoint_is_there_whatever_operation_was_the_last",
    "5 mistakes fail before step 1": "loop/test_first_mistakes.py::test_a_mistake_in_a_callback_fails_where_the_callback_is_given",
    "6 preemption": "chaos/test_signals.py::test_a_script_exits_with_the_code_of_the_signal",
    "7 no pickle": "checkpoint/test_bad_checkpoints.py::test_a_bad_checkpoint_is_refused_with_its_file_and_the_reason",
    "7 no surprises on import": "architecture/test_imports.py::test_an_import_starts_no_thread_opens_no_socket_and_writes_no_file",
    "8 measured cost": "loop/test_run_record.py::test_the_time_of_a_slow_hook_is_that_of_its_callback_and_in_the_summary",
    "8 cost of hooks in every step": "run/test_run.py::test_the_calls_of_a_step_hook_are_known_although_one_step_in_64_is_timed",
    "9 right numbers": "loop/test_right_numbers.py::test_loss_and_accuracy_equal_those_of_one_full_batch",
    "10 declared order": "callbacks/test_any_order.py::test_every_order_gives_the_right_result",
    "10 explained order": "events/test_explain.py::test_it_gives_for_each_event_who_runs_in_which_order_and_why",
    "11 callbacks of Lightning": "interop/test_lightning.py::test_a_shipped_callback_has_the_same_effect",
    "11 callbacks of Composer": "interop/test_composer.py::test_a_shipped_callback_has_the_same_effect",
    "11 models of Composer": "interop/test_composer_models.py::test_a_model_ends_with_the_same_weights_and_metrics",
    "11 our callbacks in Composer": "interop/test_composer_guests.py::test_a_guest_does_the_same",
    "11 callbacks of TorchTNT": "interop/test_torchtnt.py::test_a_shipped_callback_has_the_same_effect",
    "11 callbacks of Keras": "interop/test_keras.py::test_a_shipped_callback_has_the_same_effect",
    "11 callbacks of transformers": "interop/test_transformers.py::test_a_shipped_callback_has_the_same_effect",
    "11 callbacks of pytorch-accelerated": "interop/test_pytorch_accelerated.py::test_a_shipped_callback_has_the_same_effect",
    "11 callbacks of AIToolbox": "interop/test_aitoolbox.py::test_a_shipped_callback_has_the_same_effect",
    "11 models of AIToolbox": "interop/test_aitoolbox.py::test_a_model_ends_as_in_aitoolbox",
    "11 modules of Lightning": "interop/test_lightning_modules.py::test_a_module_ends_as_in_lightning",
    "11 table of the libraries": "docs/test_interop_table.py::test_as_many_callbacks_run_as_promised",
    "11 a script of Lightning": "interop/test_lightning_modules.py::test_a_script_is_migrated_by_changing_one_line",
    "11 callbacks of other packages": "interop/test_lightning_third_party.py::test_a_callback_of_another_package_has_the_same_effect",
    "11 handlers of ignite": "interop/test_ignite.py::test_all_events_are_fired_as_in_ignite",
    "11 units of TorchTNT": "interop/test_torchtnt_units.py::test_an_auto_unit_ends_as_in_torchtnt",
    "11 our callbacks in Keras": "interop/test_keras_guests.py::test_a_guest_does_the_same",
    "11 our callbacks in transformers": "interop/test_transformers_guests.py::test_a_guest_does_the_same",
    "11 our callbacks in Lightning": "interop/test_lightning_guests.py::test_a_guest_does_the_same",
    "12 the report": "report/test_browser_report.py::test_every_chart_is_there_and_drawn",
    "12 compare": "report/test_compare.py::test_a_setting_is_listed_if_and_only_if_it_differs",
    "12 watch": "report/test_browser_watch.py::test_new_rows_are_drawn_without_a_reload",
}


@cache
def functions_of(file: str) -> frozenset[str]:
    path = TESTS / file
    body = ast.parse(path.read_text()).body if path.exists() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))


def test_every_capability_has_the_test_that_it_names() -> None:
    table = SYSTEM | EVENTS | CALLBACKS | SINKS | PROMISES
    gone = [f"{capability}: {test}" for capability, test in table.items() if not names_a_test(test)]
    assert gone == []


def names_a_test(test: str) -> bool:
    file, _, name = test.partition("::")
    return name.startswith("test_") and name in functions_of(file)


def test_every_callback_and_sink_has_a_row() -> None:
    rows = {name.partition(" ")[0].partition("(")[0] for name in CALLBACKS | SINKS}
    found = {*subclasses(callbacks, Callback), *subclasses(sinks, sinks.Sink)} - {"LogObject"}
    assert sorted(found - rows) == []


def subclasses(module: ModuleType, base: type) -> list[str]:
    public = {name: getattr(module, name) for name in module.__all__}
    return [name for name, cls in public.items() if isinstance(cls, type) and issubclass(cls, base) and cls is not base]
