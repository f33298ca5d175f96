-- Which artefact of $run was made from which. Edges follow from the order of steps and stages.
with parts as (
    select manifest_id, a.stage, a.step, name, uri, m.kind, m.created_at
    from artefacts as a join manifests as m using (manifest_id) where a.run = $run
),
rollouts as (from parts where name = 'rollouts'),
batches as (from parts where name = 'batch'),
sets as (
    select uri, m.stage, m.kind, lag(m.stage) over later as previous_stage,
        lag(m.kind) over later as previous_kind
    from manifests as m left join artefacts as a
        on a.manifest_id = m.manifest_id and a.name = 'problems'
    where m.run = $run and (m.kind = 'filter' or (m.kind = 'problems' and uri is not null))
    window later as (order by m.created_at, m.manifest_id)
),
tries as (from rollouts where kind in ('filter', 'chunk')),
marks as (
    select stage, step, uri, min(created_at) as created_at
    from checkpoints where run = $run group by stage, step, uri
),
starts as (
    -- The checkpoint a stage starts from: the newest one of the nearest earlier stage that wrote one.
    select s.stage, arg_max(c.uri, (p.position, coalesce(c.step, 0))) as uri
    from stages as s join stages as p on p.run = s.run and p.position < s.position
        join marks as c on c.stage = p.stage
    where s.run = $run group by s.stage
),
before as (
    -- For each step: the newest checkpoint written before it in its stage, else the stage's start.
    select r.stage, r.step, coalesce(arg_max(c.uri, c.step), any_value(s.uri)) as uri,
        coalesce(max(c.step), 0) as step_of_uri
    from (
            select stage, step from parts where kind = 'step' union select stage, step from marks
        ) as r
        left join marks as c on c.stage = r.stage and c.step < r.step
        left join starts as s on s.stage = r.stage
    group by r.stage, r.step
),
policies as (
    select distinct manifest_id, checkpoint from pass_rates where run = $run
    union select distinct manifest_id, checkpoint from filter_verdicts where run = $run
    union select distinct manifest_id, checkpoint from evaluations where run = $run
)
select distinct $run as run, child, parent, relation from (
    select r.uri as child, s.uri as parent, 'drawn from' as relation
    from rollouts as r join sets as s on s.stage = r.stage and s.kind = 'problems'
    where r.kind = 'step'
    union all
    select r.uri, b.uri, 'sampled by' from rollouts as r join before as b using (stage, step)
    where r.kind = 'step'
    union all
    select r.uri, p.checkpoint, 'sampled by' from rollouts as r join policies as p using (manifest_id)
    union all
    select s.uri, t.uri, 'filtered by' from sets as s join tries as t on t.stage = s.previous_stage
    where s.kind = 'problems' and s.previous_kind = 'filter'
    union all
    select s.uri, t.uri, 'filtered by' from sets as s join tries as t using (stage)
    where s.kind = 'filter' and s.uri is not null
    union all
    select b.uri, r.uri, 'built from' from batches as b join rollouts as r using (manifest_id)
    union all
    select c.uri, t.uri, 'trained on' from marks as c
        join before as p on p.stage = c.stage and p.step = c.step
        join batches as t on t.stage = c.stage and t.step <= c.step and t.step > p.step_of_uri
    union all
    select c.uri, p.uri, 'continued from' from marks as c
        join before as p on p.stage = c.stage and p.step = c.step
)
where child <> parent
